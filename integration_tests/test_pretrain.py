"""The training entry: one process or several, and what it leaves behind."""

import json
import math
import shutil
from pathlib import Path

import pytest


def _losses(folder: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {line["step"]: line["loss"] for line in lines if line.get("kind") == "train"}


@pytest.mark.slow
def test_a_run_starts_near_the_logarithm_of_the_vocabulary_and_learns(tiny_run):
    losses = _losses(tiny_run)

    assert sorted(losses) == list(range(1, 13))
    assert abs(losses[1] - math.log(300)) < 0.3
    assert losses[12] < losses[1] - 0.3
    assert (tiny_run / "checkpoints" / "step-00000012" / "COMMIT").is_file()


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tiny_run, run_tool, tmp_path):
    for part in ("train", "validation"):
        shutil.copytree(tiny_run / part, tmp_path / part)
    options = ["--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path}"]

    killed = run_tool("pretrain.py", *options, "--kill-after", 8)
    resumed = run_tool("pretrain.py", *options)

    assert killed.returncode == -9
    assert resumed.returncode == 0, resumed.stderr
    assert _losses(tmp_path) == _losses(tiny_run)
    last = "checkpoints/step-00000012/rank-00000.safetensors"
    assert (tmp_path / last).read_bytes() == (tiny_run / last).read_bytes()


@pytest.mark.slow
@pytest.mark.msrun
def test_two_workers_give_the_losses_of_one_process_on_the_joined_batch(tiny_run, run_tool, tmp_path):
    for part in ("train", "validation"):
        shutil.copytree(tiny_run / part, tmp_path / part)

    done = run_tool(
        "pretrain.py", "--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path}", "--workers", 2
    )

    assert done.returncode == 0, done.stdout + done.stderr
    one, two = _losses(tiny_run), _losses(tmp_path)
    assert sorted(one) == sorted(two)
    assert max(abs(one[step] - two[step]) for step in one) < 2e-5  # sums of another order, 12 steps of AdamW
    # Not the losses of another batch: neighbouring steps differ by far more than that.
    assert abs(one[11] - one[12]) > 1e-3


@pytest.mark.slow
def test_evaluation_of_the_checkpoint_gives_what_training_logged(tiny_run, run_tool):
    lines = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    logged = [line for line in lines if line.get("kind") == "evaluation"][-1]

    done = run_tool("evaluate.py", "--config", tiny_run / "config.yaml", "--batch-size", 3)

    found = json.loads(done.stdout)
    assert found["tokens"] == logged["tokens"]
    assert found["perplexity"] == pytest.approx(logged["perplexity"], rel=1e-6)  # another batch size, another rounding


@pytest.mark.slow
def test_a_model_with_dropout_and_experts_goes_the_whole_way(tiny_run, run_tool, tmp_path):
    for part in ("train", "validation"):
        shutil.copytree(tiny_run / part, tmp_path / part)
    options = ["--config", tiny_run / "config.yaml", "--set", f"run.folder={tmp_path}"]
    changes = {"attention_dropout": 0.1, "model_type": "mixtral", "num_experts": 4, "router_aux_loss_coef": 0.02}
    for key, value in changes.items():
        options += ["--set", f"model.{key}={value}"]

    steps = [
        run_tool("pretrain.py", *options),
        run_tool("convert_weights.py", *options, "--output", tmp_path / "huggingface", "--prove"),
        run_tool("export_model.py", *options, "--output", tmp_path / "bundle"),
    ]

    assert [step.returncode for step in steps] == [0, 0, 0], "\n".join(step.stderr[-2000:] for step in steps)
    losses = _losses(tmp_path)
    assert losses[12] < losses[1] - 0.3
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    # 0.02 for each of two chosen experts when all are chosen equally often, more when they are not
    assert all(0.039 < line["auxiliary_loss"] < 0.08 for line in lines if line.get("kind") == "train")
