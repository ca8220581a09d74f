import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from ms_parallel.cli import main


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def files(tmp_path, model, parameters):
    (tmp_path / "config.json").write_text(json.dumps(model))
    (tmp_path / "parameters.json").write_text(json.dumps(parameters))
    return ["plan", "--model", tmp_path / "config.json", "--parameters", tmp_path / "parameters.json"]


def test_plan_is_written_and_passes_check(tmp_path, files):
    result = run(*files, "--world-size", 4, "--output", tmp_path / "plan.json")

    assert result.exit_code == 0, result.output
    assert run("check", tmp_path / "plan.json").output.endswith("valid, 4 ranks, data 4\n")
    assert json.loads(run(*files, "--world-size", 4).output) == json.loads((tmp_path / "plan.json").read_text())


def test_impossible_plan_is_an_error_without_a_traceback(tmp_path, files):
    (tmp_path / "parallel.json").write_text('{"tensor": 4}')

    result = run(*files, "--world-size", 4, "--config", tmp_path / "parallel.json")

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "nearest valid meshes for 4 ranks: data 4" in result.output


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": "other", "version": 1}', '{"format": "ms-parallel.plan", "version": 1}']
)
def test_broken_plan_file_is_named(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)

    result = run("check", path)

    assert result.exit_code == 1
    assert str(path) in result.output


def test_help_and_the_core_import_no_mindspore():
    script = "import sys, ms_parallel, ms_parallel.cli; assert not {'mindspore', 'numpy'} & sys.modules.keys()"

    subprocess.run([sys.executable, "-c", script], check=True)
