import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from ms_export.cli import main


@pytest.fixture
def run():
    def call(*arguments, code=0):
        result = CliRunner().invoke(main, [str(a) for a in arguments])
        assert result.exit_code == code, result.output
        return result.output

    return call


def test_help_imports_neither_mindspore_nor_tokenizers():
    program = """
import sys
from click.testing import CliRunner
import ms_export
from ms_export.cli import main
for command in ([], ["build"], ["check"], ["generate"], ["serve"]):
    assert CliRunner().invoke(main, [*command, "--help"]).exit_code == 0
print([name for name in ("mindspore", "tokenizers", "numpy", "safetensors") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_build_check_and_generate_work_together(run, toy, tmp_path, monkeypatch, tokenizer_file):
    monkeypatch.setattr(sys, "path", [*sys.path])
    config = tmp_path / "export.json"
    config.write_text(json.dumps({"prefill_lengths": [12], "decode_batches": [1], "slots": 4, "max_length": 99}))
    output = tmp_path / "bundle"
    source = ["--source", f"{toy.__name__}:cached_model", "--config", config, "--set", "max_length=16"]

    built = run("build", *source, "--tokenizer", tokenizer_file, output)
    checked = run("check", output)
    as_json = json.loads(run("check", "--json", output))
    ids = run("generate", output, "--prompt-ids", "5,3,8", "--max-new-tokens", 5)
    text = run("generate", output, "--prompt", "w5 w3 w8", "--max-new-tokens", 5)
    refused = run("build", *source, output, code=1)

    assert "largest difference from the model" in built
    assert "right: largest difference" in checked
    assert as_json["max_abs_difference"] <= as_json["allowed"]
    assert text.split() == [f"w{i}" for i in ids.strip().split(",")]
    assert refused.splitlines()[-1].startswith("Error: ")
    assert "exists already" in refused


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["check", "nowhere"], "nowhere: no such folder"),
        (["generate", "nowhere", "--prompt-ids", "1"], "nowhere: no such folder"),
        (["serve", "nowhere"], "nowhere: no such folder"),
        (["build", "out", "--source", "toy"], "expected MODULE:FUNCTION"),
        (["build", "out", "--source", "no_such_module:f"], "cannot import no_such_module"),
        (["build", "out", "--source", "json:no_such_function"], "json has no function no_such_function"),
        (["build", "out", "--source", "builtins:dict"], "expected it to return a CachedModel, found"),
        (["build", "out", "--source", "json:loads", "--set", "slot=3"], "did you mean slots?"),
        (["build", "out", "--source", "json:loads", "--set", "slots"], "expected KEY=JSON"),
        (["build", "out", "--source", "json:loads", "--config", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(run, arguments, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    if "builtins:dict" in arguments:
        (tmp_path / "other_source.py").write_text("def model(config):\n    return 5\n")
        arguments = [*arguments[:-1], "other_source:model"]

    output = run(*arguments, code=1)

    assert named in output
    assert len(output.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("prompts", [[], ["--prompt", "a", "--prompt-ids", "1"], ["--prompt-ids", "1,x"]])
def test_generate_asks_for_exactly_one_prompt(run, prompts):
    assert "Usage:" in run("generate", "nowhere", *prompts, code=2)


def test_debug_shows_the_traceback(tmp_path):
    result = CliRunner().invoke(main, ["--debug", "check", str(tmp_path / "nowhere")])

    assert type(result.exception).__name__ == "BundleError"
