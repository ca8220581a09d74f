"""The quickstart on a small text: it proves its stages, continues, and fails when a figure is wrong."""

import json
import shutil

import pytest
from run_config import load_run_config

STEPS = 40


@pytest.fixture(scope="module")
def quickstart(run_tool, corpus, tiny_changes, set_options, tmp_path_factory):
    """A finished quickstart: its folder, its options and what it printed."""
    folder = tmp_path_factory.mktemp("quickstart") / "run"
    changes = [change for change in tiny_changes if not change.startswith(("train.steps", "train.log_every"))]
    options = ["--folder", folder, "--input", corpus, *set_options([*changes, f"train.steps={STEPS}"])]
    return folder, options, run_tool("quickstart.py", *options)


@pytest.mark.slow
def test_every_stage_ends_with_its_figure(quickstart):
    folder, _, done = quickstart

    assert done.returncode == 0, done.stdout + done.stderr
    stages = json.loads((folder / "stages.json").read_text(encoding="utf-8"))["stages"]
    names = ["text", "tokenizer", "dataset", "train", "resume", "convert", "export", "generate"]
    assert [stage["name"] for stage in stages] == names
    figures = {stage["name"]: stage["figure"] for stage in stages}
    assert "5 steps bit-exact" in figures["resume"]
    assert "bit-equal" in figures["convert"]
    for stage in stages:
        assert stage["figure"].split(" (")[0] in done.stdout
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in report
    assert figures["tokenizer"] in report


@pytest.mark.slow
def test_a_second_call_finds_everything_done(quickstart, run_tool):
    _, options, _ = quickstart

    again = run_tool("quickstart.py", *options)

    assert again.returncode == 0, again.stderr
    assert again.stdout.count("done before") == 8


@pytest.mark.slow
def test_other_options_are_refused_and_fresh_is_named(quickstart, run_tool):
    folder, options, _ = quickstart
    before = (folder / "config.yaml").read_bytes()

    other = run_tool("quickstart.py", *options, "--set", "train.learning_rate=1e-3")

    assert other.returncode == 1
    assert "--fresh" in other.stderr
    assert (folder / "config.yaml").read_bytes() == before


@pytest.mark.slow
def test_a_resumed_loss_that_differs_in_the_last_digits_fails_the_stage(quickstart, run_tool, tmp_path):
    folder, options, _ = quickstart
    spoiled = tmp_path / "run"
    shutil.copytree(folder, spoiled)
    record = json.loads((spoiled / "stages.json").read_text(encoding="utf-8"))
    lines = (spoiled / "metrics-uninterrupted.jsonl").read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(map(json.loads, lines)):
        if line.get("kind") == "train" and line["step"] == STEPS // 2 + 2:
            lines[number] = json.dumps({**line, "loss": line["loss"] * (1 + 1e-12)})
    (spoiled / "metrics-uninterrupted.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # As if the stages from resume on were still to do, in the copied folder.
    config = (spoiled / "config.yaml").read_text(encoding="utf-8").replace(str(folder), str(spoiled))
    (spoiled / "config.yaml").write_text(config, encoding="utf-8")
    loaded = load_run_config(spoiled / "config.yaml")
    record = {"fingerprint": loaded.fingerprint(*loaded.sections), "stages": record["stages"][:4]}
    (spoiled / "stages.json").write_text(json.dumps(record), encoding="utf-8")

    done = run_tool("quickstart.py", "--folder", spoiled, *options[2:])

    assert done.returncode == 1
    assert f"loss of step {STEPS // 2 + 2}" in done.stderr
