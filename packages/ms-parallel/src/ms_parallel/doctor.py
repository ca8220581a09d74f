"""Checks of the machine and its installation, without importing MindSpore: they must work when it does not."""

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# MindSpore's release notes: what each version was released with.
KNOWN_PAIRS = {
    "2.3.0": ("8.0.RC2", "24.1.RC2"),
    "2.4.0": ("8.0.RC3", "24.1.RC3"),
    "2.4.10": ("8.0.0", "24.1.0"),
    "2.6.0": ("8.1.RC1", "25.0.RC1"),
    "2.7.0": ("8.2.RC1", "25.2.0"),
    "2.7.1": ("8.3.RC1", "25.3.RC1"),
    "2.7.2": ("8.5.0", "25.5.0"),
    "2.9.0": ("9.0.0", "26.0.RC1"),
}
ACCEPTED_CANN = {"2.10": ("8.2", "8.3", "8.5", "9.0", "9.1")}
"""Releases of CANN that the wheel's own environment check accepts, by MindSpore release."""
SUPPORTED_MINDSPORE = ("2.10",)
OLDEST_PYTHON = (3, 11, 0)
_TOOLKITS = ("usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/cann", "usr/local/Ascend/latest")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check."""

    name: str
    status: str
    """`ok`, `note` (nothing to do), `warning` or `error`."""
    found: str
    advice: str = ""


def examine(
    root: Path = Path("/"), environ: Mapping[str, str] | None = None, versions: Mapping[str, str] | None = None
) -> list[Finding]:
    """All findings.

    Args:
        root: the file system that holds `usr/local/Ascend`, `dev` and so on.
        environ: the environment; the process's own by default.
        versions: versions of installed distributions by name; asked of Python's metadata by default.
    """
    environ = os.environ if environ is None else environ
    mindspore, numpy = _version("mindspore", versions), _version("numpy", versions)
    findings = [_check_python(sys.version_info[:3]), _check_mindspore(mindspore), _check_numpy(numpy, mindspore)]
    findings.append(_check_msrun(environ))
    return findings + _check_ascend(root, environ, mindspore)


def has_errors(findings: list[Finding]) -> bool:
    """Whether anything must be mended before training can work."""
    return any(finding.status == "error" for finding in findings)


def _version(name: str, versions: Mapping[str, str] | None) -> str | None:
    if versions is not None:
        return versions.get(name)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _check_python(version: tuple[int, int, int]) -> Finding:
    found = ".".join(map(str, version))
    if version < OLDEST_PYTHON:
        return Finding(name="python", status="error", found=found, advice="use Python 3.11 or newer")
    return Finding(name="python", status="ok", found=f"{found} ({sys.executable})")


def _check_mindspore(version: str | None) -> Finding:
    if version is None:
        advice = 'pip install "ms-parallel[mindspore]"'
        return Finding(name="mindspore", status="error", found="not installed", advice=advice)
    if _release(version) not in SUPPORTED_MINDSPORE:
        advice = f"these packages are tested with {', '.join(SUPPORTED_MINDSPORE)}; others may work"
        return Finding(name="mindspore", status="warning", found=version, advice=advice)
    return Finding(name="mindspore", status="ok", found=version)


def _check_numpy(version: str | None, mindspore: str | None) -> Finding:
    if version is None:
        return Finding(name="numpy", status="error", found="not installed", advice='pip install "numpy>=1.26,<2"')
    if int(version.split(".")[0]) >= 2 and mindspore is not None:
        advice = f'MindSpore {mindspore} breaks on numpy 2, although pip lets it in: pip install "numpy>=1.26,<2"'
        return Finding(name="numpy", status="error", found=version, advice=advice)
    return Finding(name="numpy", status="ok", found=version)


def _check_msrun(environ: Mapping[str, str]) -> Finding:
    beside = Path(sys.executable).with_name("msrun")
    found = str(beside) if beside.exists() else shutil.which("msrun", path=environ.get("PATH", os.defpath))
    if found is None:
        return Finding(name="msrun", status="error", found="not found", advice="it comes with mindspore; reinstall it")
    return Finding(name="msrun", status="ok", found=found)


def _check_ascend(root: Path, environ: Mapping[str, str], mindspore: str | None) -> list[Finding]:
    devices = sorted(entry.name for entry in (root / "dev").glob("davinci[0-9]*"))
    driver = _read_version(root / "usr/local/Ascend/driver/version.info")
    cann = _find_cann(root, environ)
    if not devices and driver is None and cann is None:
        return [Finding(name="ascend", status="note", found="no driver, no CANN, no devices: CPU only")]
    findings = [Finding(name="devices", status="ok", found=", ".join(devices))]
    if not devices:
        advice = "no /dev/davinci*: is the driver loaded, and are the devices passed into this container?"
        findings = [Finding(name="devices", status="error", found="none", advice=advice)]
    if driver is None:
        advice = f"install the driver{_pair_hint(mindspore, 1)}; into a container, mount /usr/local/Ascend/driver"
        findings.append(Finding(name="driver", status="error", found="not found", advice=advice))
    else:
        findings.append(Finding(name="driver", status="ok", found=driver))
    if cann is None:
        advice = f"install CANN{_pair_hint(mindspore, 0)} and source its set_env.sh"
        findings.append(Finding(name="cann", status="error", found="not found", advice=advice))
    else:
        findings.append(_check_pair(cann, driver, mindspore))
    return findings


def _check_pair(cann: str, driver: str | None, mindspore: str | None) -> Finding:
    release = _release(mindspore) if mindspore else None
    if release in ACCEPTED_CANN and _release(cann) not in ACCEPTED_CANN[release]:
        advice = f"MindSpore {mindspore} accepts CANN {', '.join(ACCEPTED_CANN[release])}"
        return Finding(name="cann", status="error", found=cann, advice=advice)
    if mindspore in KNOWN_PAIRS:
        wanted_cann, wanted_driver = KNOWN_PAIRS[mindspore]
        if _release(cann) != _release(wanted_cann):
            advice = f"MindSpore {mindspore} was released with CANN {wanted_cann} and driver {wanted_driver}"
            return Finding(name="cann", status="error", found=cann, advice=advice)
        if driver is not None and _order(driver) < _order(wanted_driver):
            advice = f"driver {driver} is older than {wanted_driver}, with which CANN {wanted_cann} was released"
            return Finding(name="cann", status="warning", found=cann, advice=advice)
    elif release not in ACCEPTED_CANN:
        advice = f"no pair is known for MindSpore {mindspore}; see its release notes"
        return Finding(name="cann", status="warning", found=cann, advice=advice)
    return Finding(name="cann", status="ok", found=cann)


def _find_cann(root: Path, environ: Mapping[str, str]) -> str | None:
    named = [environ[key] for key in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environ.get(key)]
    for home in (*(root / name.lstrip("/") for name in named), *(root / name for name in _TOOLKITS)):
        for file in (home / "compiler" / "version.info", home / "version.info"):
            if (version := _read_version(file)) is not None:
                return version
    return None


def _read_version(path: Path) -> str | None:
    """The version that a `version.info` of Ascend's installers states."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^(?:package_)?version\s*=\s*\[?([0-9][\w.]*)", text, re.IGNORECASE | re.MULTILINE)
    return found[1] if found else None


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _order(version: str) -> list[int]:
    """Sort key: 24.1.RC2 comes before 24.1.0."""
    parts = re.findall(r"rc|\d+", version.lower())
    return [-1 if part == "rc" else int(part) for part in parts]


def _pair_hint(mindspore: str | None, place: int) -> str:
    if mindspore in KNOWN_PAIRS:
        return f" ({KNOWN_PAIRS[mindspore][place]} goes with MindSpore {mindspore})"
    return ""
