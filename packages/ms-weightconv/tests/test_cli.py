import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from ms_weightconv.cli import main
from ms_weightconv.families import FAMILIES
from ms_weightconv.mindformers import NAMINGS


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_convert_and_prove_report_what_they_did(folders):
    source = folders.huggingface("gpt2", oddity=1)

    converted = run("convert", source, folders.root / "ours", "--to", "mindspore")
    proven = run("prove", source, folders.root / "ours")

    assert converted.exit_code == proven.exit_code == 0, converted.output + proven.output
    assert "family gpt2: 36 tensors" in converted.output
    assert "unknown config keys, kept but not interpreted: oddity" in converted.output
    assert "proven: 36 tensors equal word for word" in proven.output


def test_the_report_can_be_json(folders):
    result = CliRunner().invoke(
        main, ["convert", str(folders.huggingface("llama")), str(folders.root / "x"), "--to", "checkpoint", "--json"]
    )

    assert json.loads(result.stdout)["layouts"] == ["huggingface", "checkpoint"]


def test_list_shows_families_and_the_lines_of_one():
    assert [line.split(":")[0] for line in run("list").output.splitlines()] == [*FAMILIES, *NAMINGS]
    output = run("list", "gpt2").output
    assert "[transpose, split query/key/value]" in output
    assert "config n_embd, hidden_size -> hidden_size" in output


@pytest.mark.parametrize(
    "arguments", [("convert", "none", "x", "--to", "mindspore"), ("prove", "none", "x"), ("list", "mamba")]
)
def test_an_error_is_one_line_and_exit_code_1_and_debug_shows_more(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)

    assert result.exit_code == 1
    assert len(result.output.strip().splitlines()) == 1
    assert result.output.startswith("Error: ")
    assert run("--debug", *arguments).exception is not None
    assert list(tmp_path.iterdir()) == []


def test_help_and_import_need_no_numpy():
    code = "import sys, ms_weightconv.cli; sys.exit('numpy' in sys.modules or 'tqdm' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_nothing_at_run_time_needs_torch_transformers_or_mindspore(folders):
    source = folders.huggingface("llama")
    code = (
        "import sys, pathlib, ms_weightconv\n"
        f"source, target = pathlib.Path({str(source)!r}), pathlib.Path({str(folders.root / 'x')!r})\n"
        "ms_weightconv.convert(source, target, to='huggingface')\n"
        "found = {'torch', 'transformers', 'mindspore', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(str(found) if found else 0)"
    )

    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
