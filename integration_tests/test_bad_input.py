"""Bad input anywhere on the path: one clear line, a non-zero exit, a traceback only with --debug."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _assert_refused(done, *words: str) -> None:
    """The tool said one line on standard error that holds `words`."""
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in errors[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.setps=3", ("train.setps", "unknown key", "steps")),
        ("train.steps=many", ("train.steps", "expected", "many")),
        ("modle.vocab_size=3", ("modle", "model")),
        ("train.steps", ("section.key=value",)),
        ("model.hidden_size=30", ("hidden_size", "30")),
        ("parallel.tensor=2", ("parallel.tensor", "data-parallel")),
        ("train.warmup_steps=500", ("warmup_steps", "500")),
    ],
)
def test_a_wrong_config_is_refused_in_one_line(change, words, run_tool, tiny_run):
    done = run_tool("pretrain.py", "--config", tiny_run / "config.yaml", "--set", change)

    _assert_refused(done, *words)


def test_a_missing_config_is_named(run_tool, tmp_path):
    done = run_tool("pretrain.py", "--config", tmp_path / "none.yaml")

    _assert_refused(done, "none.yaml", "configs/")


def test_a_file_that_is_no_yaml_is_named_with_the_place(run_tool, tmp_path):
    (tmp_path / "torn.yaml").write_text("train: {steps: 3\n", encoding="utf-8")

    _assert_refused(run_tool("pretrain.py", "--config", tmp_path / "torn.yaml"), "torn.yaml", "line")


def test_debug_shows_the_traceback(run_tool, tmp_path):
    done = run_tool("pretrain.py", "--config", tmp_path / "none.yaml", "--debug")

    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_a_missing_input_is_named(run_tool, tmp_path, tiny_run):
    options = ["--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path}", "--input", tmp_path / "nowhere"]

    _assert_refused(run_tool("prepare_data.py", *options), "nowhere")


def test_a_missing_dataset_is_named_with_what_to_do(run_tool, tmp_path, tiny_run):
    options = ["--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path}", "--set", "run.text=null"]

    _assert_refused(run_tool("pretrain.py", *options), "train", "prepare_data.py")


@pytest.mark.slow
def test_a_validation_set_of_another_tokenizer_is_refused_by_fingerprint(run_tool, tmp_path, tiny_run, corpus):
    shutil.copytree(tiny_run / "train", tmp_path / "train")
    other = tmp_path / "other"
    prepared = run_tool(
        "prepare_data.py", "--config", tiny_run / "config.yaml", "--set", f"run.folder={other}", "--set",
        "model.vocab_size=290",
    )  # fmt: skip
    assert prepared.returncode == 0, prepared.stderr

    done = run_tool(
        "pretrain.py", "--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path}", "--set",
        f"run.validation_dataset={other / 'validation'}",
    )  # fmt: skip

    _assert_refused(done, "sha256:", "validation")


def test_data_prepared_with_other_options_are_refused_and_not_trained_on(run_tool, tiny_run):
    done = run_tool("pretrain.py", "--config", tiny_run / "config.yaml", "--set", "data.seq_length=16")

    _assert_refused(done, "data.seq_length: 16, prepared with 32", "run.folder")


def test_text_without_a_document_leaves_no_tokenizer_behind(run_tool, tmp_path, tiny_run):
    (tmp_path / "empty.txt").touch()
    options = ["--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path / 'run'}"]

    _assert_refused(run_tool("prepare_data.py", *options, "--input", tmp_path / "empty.txt"), "no readable document")
    assert not (tmp_path / "run" / "tokenizer.json").exists()


def test_a_run_that_evaluates_without_validation_documents_is_refused_before_any_work(run_tool, tmp_path, tiny_run):
    options = ["--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path / 'run'}"]

    done = run_tool("prepare_data.py", *options, "--set", "data.validation_share=0")

    _assert_refused(done, "validation_share", "train.evaluate_every=0")
    assert not (tmp_path / "run").exists()


def test_an_output_folder_in_use_is_refused(run_tool, tmp_path, tiny_run):
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "notes.txt").write_text("mine", encoding="utf-8")

    done = run_tool("export_model.py", "--config", tiny_run / "config.yaml", "--output", tmp_path / "bundle")

    _assert_refused(done, "bundle")
    assert (tmp_path / "bundle" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_run_without_a_checkpoint_cannot_be_exported(run_tool, tmp_path, tiny_run):
    done = run_tool("export_model.py", "--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path}")

    _assert_refused(done, "no valid checkpoint", "pretrain.py")


def test_quickstart_does_not_delete_a_folder_that_is_no_run(run_tool, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")

    done = run_tool("quickstart.py", "--folder", tmp_path, "--fresh")

    _assert_refused(done, str(tmp_path))
    assert (tmp_path / "thesis.txt").exists()
