"""Tests of the record of a step that is not finite, of its diagnosis, and of running it again."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ms_trainloop.errors import ForensicsError, ResumeError
from ms_trainloop.forensics import read_record
from ms_trainloop.loop import train
from ms_trainloop.replay import replay
from ms_trainloop.step import TrainStep

SAMPLE = 18  # third row of the fifth batch of four: its second micro-batch


def make_step(lab, kind, **changes):
    model = lab.FragileModel(kind)
    return TrainStep(
        model, lab.make_config(**{"learning_rate": 1e-3, "min_learning_rate": 1e-4, **changes}), parameters=model.named
    )


def run(lab, folder, kind, traps=(SAMPLE,), **changes):
    results = {}
    train(
        make_step(lab, kind, **changes),
        lab.trapped_batches(lab.make_rows(), 4, traps),
        run_dir=folder,
        progress=None,
        stop_after=7,
        tokenizer_fingerprint="sha256:1",
        config={"kind": kind},
        on_step=results.__setitem__,
    )
    return results


@pytest.fixture(scope="module")
def overflowed(lab, tmp_path_factory):
    folder = tmp_path_factory.mktemp("overflowed")
    return folder, run(lab, folder, "exp", traps=(SAMPLE, 25))


def test_the_record_names_sample_cell_and_statement(overflowed):
    folder, results = overflowed

    report, batch, _ = read_record(folder / "forensics" / "step-00000005")

    assert (report["step"], report["samples"], report["sample_ids"]) == (5, [16, 19], [16, 17, 18, 19])
    found = report["diagnosis"]
    assert (found["micro_batch"], found["sample_ids"], found["weights"]) == (1, [18, 19], [])
    assert found["forward"]["cell"] == "steep"
    assert found["forward"]["source"] == "grown = ops.exp(x)"
    assert found["forward"]["variable"] == "grown"
    assert found["gradient_norms"]["lm_head.weight"] is None
    assert report["result"]["learning_rate"] == results[5].learning_rate
    assert batch["input_ids"][2, 2] == 22


def test_only_the_first_such_step_is_recorded_and_training_goes_on(overflowed):
    folder, results = overflowed

    assert [path.name for path in (folder / "forensics").iterdir()] == ["step-00000005"]
    assert [number for number, result in results.items() if not result.is_applied] == [5, 7]


def test_the_step_runs_again_from_its_record_to_the_bit(lab, overflowed):
    folder, results = overflowed

    again = replay(folder / "forensics" / "step-00000005", make_step(lab, "exp"))

    assert again.differences == []
    assert again.step == 5
    assert not again.result.is_applied
    assert "first value that is not finite: cell steep, lab.py:" in again.explanation
    assert again.result.learning_rate == results[5].learning_rate


@pytest.mark.slow
def test_the_command_runs_a_record_again(overflowed):
    program = "from ms_trainloop.cli import main; main()"
    folder = overflowed[0] / "forensics" / "step-00000005"
    maker = f"{Path(__file__).parent / 'lab.py'}:make_fragile"

    done = subprocess.run(
        [sys.executable, "-c", program, "replay", str(folder), "--model", maker], capture_output=True, text=True
    )
    wrong = subprocess.run(
        [sys.executable, "-c", program, "replay", str(folder), "--model", maker + "s"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 5: first value that is not finite: cell steep, lab.py:")
    assert done.stdout.endswith("reproduced to the bit\n")
    assert wrong.returncode == 1
    assert "has no attribute 'make_fragiles'" in wrong.stderr


def test_a_record_that_was_changed_is_not_reproduced(lab, overflowed, tmp_path):
    source = overflowed[0] / "forensics" / "step-00000005"
    for path in source.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    _, batch, _ = read_record(source)
    batch["input_ids"][2, 2] = 1
    np.savez(tmp_path / "batch.npz", **batch)

    again = replay(tmp_path, make_step(lab, "exp"))

    assert any(line.startswith("is_applied: recorded False, now True") for line in again.differences)


def test_a_gradient_that_breaks_on_the_way_back_is_told_apart(lab, tmp_path, caplog):
    run(lab, tmp_path, "sqrt")

    report = json.loads((tmp_path / "forensics" / "step-00000005" / "report.json").read_text())
    assert report["diagnosis"]["forward"] is None
    assert report["diagnosis"]["backward"] == {"cell": "steep", "kind": "Steep"}
    assert report["diagnosis"]["gradient_norms"]["embedding.weight"] is None
    assert report["diagnosis"]["gradient_norms"]["lm_head.weight"] > 0
    assert "the gradient is not from cell steep (Steep) on back" in caplog.text


def test_an_overflow_of_the_scaled_gradient_is_replayed_with_its_scale(lab, tmp_path):
    options = {"precision": "float16", "loss_scale": 2.0**24, "keep_float32": []}
    run(lab, tmp_path, "none", traps=(), **options)

    again = replay(tmp_path / "forensics" / "step-00000001", make_step(lab, "none", **options))

    assert again.differences == []
    assert again.result.loss_scale == 2.0**24


def test_a_step_with_dropout_is_replayed_with_its_masks(lab, tmp_path):
    model = lab.DroppingModel()
    step = TrainStep(model, lab.make_config(), parameters=model.named)

    def spoil(number, result):
        if number == 4:
            lab.ops.assign(model.head, lab.Tensor(np.full((lab.VOCAB, lab.HIDDEN), 3e38, np.float32)))

    train(step, lab.batches_of(lab.make_rows(), 4), run_dir=tmp_path, progress=None, on_step=spoil, stop_after=6)
    fresh = lab.DroppingModel()
    again = replay(
        tmp_path / "forensics" / "step-00000005", TrainStep(fresh, lab.make_config(), parameters=fresh.named)
    )

    assert again.differences == []
    assert int(fresh.counter.asnumpy()) == 10
    assert int(model.counter.asnumpy()) == 12, "the diagnosis must not move the run's own counter"


def test_the_record_can_be_turned_off(lab, tmp_path):
    run(lab, tmp_path, "exp", forensics=False)

    assert not (tmp_path / "forensics").exists()


def test_records_that_do_not_fit_are_refused(lab, overflowed, tmp_path):
    with pytest.raises(ForensicsError, match=r"report.json, batch.npz, state.npz missing"):
        replay(tmp_path, make_step(lab, "exp"))
    with pytest.raises(ResumeError, match=r"model.mlp.up.weight: missing"):
        replay(overflowed[0] / "forensics" / "step-00000005", lab.make_step())
