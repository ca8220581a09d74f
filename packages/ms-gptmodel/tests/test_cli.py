"""The command line, in this process: what it prints, and how it refuses."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from ms_gptmodel import CachedDecoder, GenerationConfig, generate
from ms_gptmodel.cli import main
from safetensors.numpy import save_file


@pytest.fixture(scope="module")
def run():
    return lambda *arguments: CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture(scope="module")
def model_dir(model_of, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model, weights = model_of("llama")
    model.config.save(folder / "config.json")
    save_file(weights, folder / "model.safetensors")
    return folder


def test_describe_prints_the_same_numbers_for_a_preset_and_its_file(run, tmp_path):
    as_json = run("describe", "gpt2_124m", "--json", "--seq-length", 512)

    assert as_json.exit_code == 0
    assert json.loads(as_json.stdout)["parameters"]["total"] == 124_439_808
    assert json.loads(as_json.stdout)["seq_length"] == 512
    assert "124,439,808" in run("describe", "gpt2_124m").stdout


@pytest.mark.slow
def test_generate_prints_what_the_library_generates(run, model_dir, model_of):
    result = run("generate", model_dir, "--prompt-ids", "1,2,3", "--prompt-ids", "9", "--max-new-tokens", 5)

    assert result.exit_code == 0, result.output
    decoder = CachedDecoder(model_of("llama")[0], slots=3, max_length=16)
    expected = generate(decoder, [[1, 2, 3], [9]], GenerationConfig(max_new_tokens=5))
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert lines == [{"ids": list(e.ids), "finish_reason": e.finish_reason} for e in expected]


def test_a_mistake_is_one_line_and_exit_code_1(run, model_dir, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    mistakes = {
        ("describe", "no_such_model"): "neither a file nor a preset; presets: gpt2_124m",
        ("describe", tmp_path): "config.json: no 'format'",
        ("describe", "gpt2_124m", "--dtype", "int8"): "describe.dtype",
        ("generate", tmp_path / "none", "--prompt-ids", "1"): "No such file",
        ("generate", model_dir, "--prompt-ids", "1,x"): "--prompt-ids '1,x': expected integers",
        ("generate", model_dir, "--prompt-ids", "1", "--top-p", "0"): "generation.top_p",
        ("generate", model_dir, "--prompt-ids", "99"): "input_ids[0, 0] is 99",
    }

    for arguments, message in mistakes.items():
        result = run(*arguments)

        assert result.exit_code == 1, arguments
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_debug_shows_the_error_itself(run):
    assert run("--debug", "describe", "no_such_model").exception.__class__.__name__ == "ConfigError"


def test_a_torn_weights_file_is_refused_by_name(run, model_dir, tmp_path):
    (tmp_path / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((model_dir / "model.safetensors").read_bytes()[:-5])

    result = run("generate", tmp_path, "--prompt-ids", "1")

    assert result.exit_code == 1
    assert "model.safetensors: not a whole safetensors file" in result.stderr


def test_the_package_and_its_help_do_not_import_mindspore():
    script = "import sys, ms_gptmodel, ms_gptmodel.cli; sys.exit('mindspore' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
