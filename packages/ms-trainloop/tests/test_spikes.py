"""Tests of the loss-spike guard: skipping a step, and rolling back and passing over the data."""

import json
import math

import numpy as np
import pytest
from ms_trainloop.config import TrainConfig
from ms_trainloop.errors import DivergenceError
from ms_trainloop.loop import train
from ms_trainloop.spikes import SpikeGuard
from ms_trainloop.step import TrainStep

SAMPLE = 42  # of the eleventh batch of four


def make_step(lab, **changes):
    model = lab.FragileModel("none")
    defaults = {"steps": 16, "learning_rate": 1e-3, "min_learning_rate": 1e-4, "spike_window": 5, "save_every": 4}
    return TrainStep(model, lab.make_config(**{**defaults, **changes}), parameters=model.named)


def run(lab, folder, *, states=None, at=None, step=None, traps=(SAMPLE,), **changes):
    checkpointer, results = lab.MemoryCheckpointer(states, at), []
    step = step or make_step(lab, **changes)
    train(
        step,
        lab.trapped_batches(lab.make_rows(), 4, traps),
        run_dir=folder,
        checkpointer=checkpointer,
        progress=None,
        on_step=lambda number, result: results.append((number, result)),
    )
    return step, checkpointer, results


def test_without_the_guard_the_spike_is_trained_on(lab, tmp_path):
    _, _, results = run(lab, tmp_path)

    assert results[10][1].loss_sum / results[10][1].tokens > 10
    assert all(result.is_applied for _, result in results)


def test_a_spike_is_skipped_and_the_window_is_part_of_the_state(lab, tmp_path, caplog):
    step, checkpointer, results = run(lab, tmp_path / "a", spike_action="skip")

    assert [number for number, result in results if not result.is_applied] == [11]
    assert results[10][1].is_spike
    assert "samples 40 ... 43" in caplog.text
    assert "a spike: the limit was" in caplog.text
    again, resumed, _ = run(lab, tmp_path / "b", states=checkpointer.states, at=8, spike_action="skip")
    for name, value in lab.weights_of(step).items():
        np.testing.assert_array_equal(lab.weights_of(again)[name], value)
    assert resumed.states[16][1]["trainloop"] == checkpointer.states[16][1]["trainloop"]


def test_a_rollback_goes_on_from_the_checkpoint_behind_the_spike(lab, tmp_path, caplog):
    """Equal to the bit to a run that goes on from the checkpoint of step 8 with the data after the spike."""
    step, checkpointer, results = run(lab, tmp_path / "a", spike_action="rollback")

    numbers = [number for number, _ in results]
    assert numbers == [*range(1, 12), *range(9, 17)]
    assert "step 11: rolled back to step 8; samples 32 ... 43 are passed over" in caplog.text
    lines = [json.loads(row) for row in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()[1:]]
    assert [line["step"] for line in lines] == list(range(1, 17))
    assert [line["samples"] for line in lines] == [4 * k for k in range(1, 9)] + [44 + 4 * k for k in range(1, 9)]
    assert lines[-1]["skipped_steps"] == 0
    tensors, values = checkpointer.states[8]
    behind = {8: (tensors, {**values, "samples_consumed": 44})}
    expected, _, _ = run(lab, tmp_path / "b", states=behind, at=8, spike_action="rollback")
    for name, value in lab.weights_of(expected).items():
        np.testing.assert_array_equal(lab.weights_of(step)[name], value)


def test_rollbacks_are_counted_and_end_the_run(lab, tmp_path):
    with pytest.raises(DivergenceError, match=r"a spike after 1 rollbacks \(train.max_rollbacks\)"):
        run(lab, tmp_path, traps=range(40, 1000), spike_action="rollback", max_rollbacks=1)


def test_without_a_checkpoint_the_spike_is_only_skipped(lab, tmp_path, caplog):
    _, _, results = run(lab, tmp_path, spike_action="rollback", save_every=0)

    assert [number for number, _ in results] == list(range(1, 17))
    assert "there is no checkpoint to roll back to" in caplog.text


def test_the_limit_is_mean_plus_deviations_and_needs_a_full_window():
    config = TrainConfig(
        steps=9, global_batch_size=1, micro_batch_size=1, learning_rate=1.0,
        spike_action="skip", spike_window=4, spike_deviations=3.0,
    )  # fmt: skip
    guard = SpikeGuard(config, [9.0, 1.0, 3.0, 1.0])
    assert SpikeGuard(config, [1.0, 3.0, 1.0]).limit == math.inf

    guard.add(3.0)

    assert guard.losses == [1.0, 3.0, 1.0, 3.0]
    assert guard.limit == 2.0 + 3.0 * 1.0
    assert SpikeGuard(config, [2.0] * 4).limit == pytest.approx(2.0 + 3.0 * 0.02)
