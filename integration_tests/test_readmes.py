"""What the READMEs show runs as it stands there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = sorted(package.name for package in (ROOT / "packages").iterdir())


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.slow
@pytest.mark.parametrize("package", NAMES)
def test_the_blocks_of_a_package_readme_run_in_an_empty_folder(package, tmp_path):
    readme = ROOT / "packages" / package / "README.md"
    code = "\n".join(_blocks(readme, "python"))
    assert code, "a README shows ten lines that run"

    script = tmp_path / "readme.py"
    script.write_text(code, encoding="utf-8")
    _run([sys.executable, str(script)], tmp_path)

    for block in _blocks(readme, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                _run(["bash", "-c", line[2:]], tmp_path)


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_the_commands_of_the_root_readme_exist(readme):
    text = (ROOT / readme).read_text(encoding="utf-8")
    environments = tomllib.loads((ROOT / "hatch.toml").read_text(encoding="utf-8"))["envs"]

    for environment, script in re.findall(r"hatch run (?:\+\S+ )?(?:(\w+):)?([\w-]+)", text):
        commands = {"python", *NAMES} if not environment else set()
        assert script in commands | set(environments[environment or "default"]["scripts"]), script
    for tool in set(re.findall(r"tools/\w+\.py", text)):
        assert (ROOT / tool).is_file(), tool
    for config in set(re.findall(r"configs/\w+\.yaml", text)):
        assert (ROOT / config).is_file(), config
    assert 'pip install "hatch>=1.18"' in text
    assert {"quickstart", "test"} <= {script for _, script in re.findall(r"hatch run (?:(\w+):)?(\w+)", text)}


@pytest.mark.slow
@pytest.mark.parametrize("tool", sorted(path.name for path in (ROOT / "tools").glob("*.py")))
def test_every_tool_is_a_command_that_answers_help_or_a_noun_that_others_use(tool):
    path = ROOT / "tools" / tool
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
        answer = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, text=True, check=True)
        assert "Usage:" in answer.stdout
    else:
        users = [
            other
            for other in (*path.parent.glob("*.py"), *(ROOT / "integration_tests" / "benchmarks").glob("*.py"))
            if re.search(rf"\bimport {path.stem}\b|from {path.stem} import", other.read_text(encoding="utf-8"))
        ]
        assert users
