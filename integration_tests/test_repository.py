"""What every file of the repository must keep to."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = sorted((ROOT / "packages").iterdir())
NAMES = [package.name for package in PACKAGES]


def _tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    return [ROOT / line for line in listing if line and (ROOT / line).exists()]


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_there_are_seven_packages():
    expected = ["ms-ckpt", "ms-dataprep", "ms-export", "ms-gptmodel", "ms-parallel", "ms-trainloop", "ms-weightconv"]

    assert expected == NAMES


def test_no_file_is_over_400_lines():
    long = {str(p.relative_to(ROOT)): n for p in _tracked("*.py", "*.sh", ".ci/run") if (n := _lines(p)) > 400}

    assert not long


def test_the_median_file_is_under_150_lines():
    lengths = sorted(_lines(path) for path in _tracked("packages/*/src/*.py"))

    assert lengths[len(lengths) // 2] < 150


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("package", NAMES)
def test_no_package_imports_another_not_even_in_tests(package):
    own = package.replace("-", "_")
    others = {name.replace("-", "_") for name in NAMES} - {own}

    guilty = {str(p): found for p in _tracked(f"packages/{package}/*.py") if (found := _imports(p) & others)}

    assert not guilty


@pytest.mark.parametrize("package", NAMES)
def test_every_version_has_its_changelog_section(package):
    folder = ROOT / "packages" / package
    about = (folder / "src" / package.replace("-", "_") / "__about__.py").read_text(encoding="utf-8")
    version = re.search(r'__version__ = "(.+)"', about).group(1)

    headings = re.findall(r"^## \[(.+?)\]", (folder / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)

    assert headings[0] in (version, "Unreleased")
    assert version in headings


@pytest.mark.parametrize("package", NAMES)
def test_every_package_is_complete_in_itself(package):
    folder, own = ROOT / "packages" / package, package.replace("-", "_")

    for needed in (
        "pyproject.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        f"src/{own}/py.typed",
        f"src/{own}/cli.py",
    ):
        assert (folder / needed).is_file(), needed
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == package
    assert project["scripts"] == {package: f"{own}.cli:main"}
    assert project["license"] == "Apache-2.0"
    assert list((folder / "tests").glob("test_*.py"))


@pytest.mark.parametrize("package", NAMES)
def test_every_dependency_has_its_reason_beside_it(package):
    lines = (ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    begin = lines.index("dependencies = [")

    bare = [line for line in lines[begin + 1 : lines.index("]", begin)] if "#" not in line]

    assert not bare


@pytest.mark.parametrize("package", ["ms-ckpt", "ms-parallel", "ms-weightconv"])
def test_a_package_that_is_useful_without_mindspore_does_not_require_it(package):
    text = (ROOT / "packages" / package / "pyproject.toml").read_text(encoding="utf-8")

    dependencies = tomllib.loads(text)["project"]["dependencies"]

    assert not [name for name in dependencies if re.match(r"mindspore|torch|transformers", name)]


def test_the_hatch_matrix_equals_the_folder_list():
    hatch = tomllib.loads((ROOT / "hatch.toml").read_text(encoding="utf-8"))

    matrix = hatch["envs"]["alone"]["matrix"][0]["package"]

    assert sorted(f"ms-{name}" for name in matrix) == NAMES
    assert set(hatch["envs"]) == {"default", "alone", "lint", "reference", "bench"}
    assert {"quickstart", "test", "unit", "integration"} <= set(hatch["envs"]["default"]["scripts"])


def test_the_independence_contract_names_every_package():
    text = (ROOT / ".importlinter").read_text(encoding="utf-8")

    for package in NAMES:
        assert text.count(package.replace("-", "_")) == 2


@pytest.mark.parametrize("package", NAMES)
def test_the_command_answers_help_without_importing_what_is_heavy(package):
    own = package.replace("-", "_")
    heavy = ("mindspore", "torch", "transformers", "tokenizers", "sentencepiece", "tensorboardX", "matplotlib")
    code = (
        f"import sys; import {own}.cli as cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        f"print('heavy:', [name for name in {heavy} if name in sys.modules])"
    )

    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "Usage:" in answer.stdout
    assert answer.stdout.rstrip().endswith("heavy: []")


def test_no_file_names_a_machine_path_or_a_registry_host():
    own = Path(__file__)
    pattern = re.compile(r"(?<![\w.])/(?:work|root|farm|home)/|https?://(?:pypi|registry|files\.pythonhosted)\.")

    guilty = [
        f"{path.relative_to(ROOT)}: {match.group(0)}"
        for path in _tracked("*.py", "*.md", "*.toml", "*.yaml", "*.json", "*.ini", ".ci/run")
        if path != own and (match := pattern.search(path.read_text(encoding="utf-8")))
    ]

    assert not guilty
