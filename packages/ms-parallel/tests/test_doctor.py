import json

import pytest
from click.testing import CliRunner
from ms_parallel.cli import main
from ms_parallel.doctor import examine, has_errors

GOOD = {"mindspore": "2.10.0", "numpy": "1.26.4"}


@pytest.fixture
def machine(tmp_path):
    """A file tree as Ascend's installers leave it: device, driver, CANN."""

    def build(*, cann="8.5.0", driver="25.5.0", num_devices=1):
        (tmp_path / "dev").mkdir()
        for number in range(num_devices):
            (tmp_path / "dev" / f"davinci{number}").touch()
        if driver:
            folder = tmp_path / "usr/local/Ascend/driver"
            folder.mkdir(parents=True)
            (folder / "version.info").write_text(f"Version={driver}\nascendhal_version=7.35\n")
        if cann:
            folder = tmp_path / "usr/local/Ascend/ascend-toolkit/latest/compiler"
            folder.mkdir(parents=True)
            (folder / "version.info").write_text(f"Version={cann}\nversion_dir={cann}\n")
        return tmp_path

    return build


def by_name(root, versions):
    return {finding.name: finding for finding in examine(root, {"PATH": ""}, versions)}


def test_this_installation_is_fine():
    result = CliRunner().invoke(main, ["doctor", "--json"])

    findings = {finding["name"]: finding for finding in json.loads(result.output)}
    assert result.exit_code == 0
    assert findings["mindspore"]["status"] == findings["numpy"]["status"] == findings["msrun"]["status"] == "ok"


def test_numpy_2_beside_mindspore_is_an_error(tmp_path):
    found = by_name(tmp_path, {**GOOD, "numpy": "2.1.0"})

    assert found["numpy"].status == "error"
    assert 'pip install "numpy>=1.26,<2"' in found["numpy"].advice


def test_missing_and_untested_mindspore_are_told_apart(tmp_path):
    assert by_name(tmp_path, {"numpy": "1.26.4"})["mindspore"].status == "error"
    assert by_name(tmp_path, {**GOOD, "mindspore": "2.7.1"})["mindspore"].status == "warning"


def test_machine_without_ascend_is_no_error(tmp_path):
    findings = examine(tmp_path, {"PATH": ""}, GOOD)

    assert findings[-1].found == "no driver, no CANN, no devices: CPU only"
    assert not has_errors(findings)


def test_matching_machine_is_fine(machine):
    found = by_name(machine(), GOOD)

    assert {found[name].status for name in ("devices", "driver", "cann")} == {"ok"}


def test_missing_driver_devices_and_cann_are_errors_with_advice(machine):
    found = by_name(machine(driver=None, num_devices=0), {**GOOD, "mindspore": "2.7.1"})

    assert found["driver"].status == found["devices"].status == "error"
    assert "25.3.RC1 goes with MindSpore 2.7.1" in found["driver"].advice


@pytest.mark.parametrize(
    ("mindspore", "cann", "driver", "status"),
    [
        ("2.10.0", "8.1.RC1", "25.0.RC1", "error"),
        ("2.7.1", "8.5.0", "25.5.0", "error"),
        ("2.7.1", "8.3.RC1", "25.2.0", "warning"),
        ("2.7.1", "8.3.RC1", "25.3.0", "ok"),
        ("2.6.9", "8.3.RC1", "25.3.0", "warning"),
    ],
)
def test_versions_that_do_not_belong_together_are_found(machine, mindspore, cann, driver, status):
    assert by_name(machine(cann=cann, driver=driver), {**GOOD, "mindspore": mindspore})["cann"].status == status


def test_toolkit_named_by_the_environment_comes_first(machine):
    root = machine()
    (root / "opt/cann/compiler").mkdir(parents=True)
    (root / "opt/cann/compiler/version.info").write_text("Version=9.0.0\n")

    found = {finding.name: finding for finding in examine(root, {"ASCEND_HOME_PATH": "/opt/cann"}, GOOD)}

    assert found["cann"].found == "9.0.0"
