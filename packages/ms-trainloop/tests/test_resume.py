"""Tests of exact resume at every step (in new processes: test_signals.py), and of what is refused."""

import json
import math

import numpy as np
import pytest
from ms_trainloop.errors import ResumeError
from ms_trainloop.evaluation import Evaluator
from ms_trainloop.loop import train

TIMINGS = ("tokens_per_second", "data_wait")


def go_on(lab, states, at, folder, *, step=None, config=None, fingerprint="sha256:1", stop_after=None, results=None):
    checkpointer = lab.MemoryCheckpointer(states, at)
    step = step or lab.make_step(config or lab.make_config())
    train(
        step,
        lab.batches_of(lab.make_rows(), 4),
        run_dir=folder,
        checkpointer=checkpointer,
        on_step=None if results is None else results.__setitem__,
        samples_per_epoch=lab.ROWS,
        tokenizer_fingerprint=fingerprint,
        progress=None,
        stop_after=stop_after,
    )
    return step, checkpointer


@pytest.fixture(scope="module")
def used_step(lab):
    """A compiled step that earlier tests have trained: a restore that forgets a counter or a tensor shows."""
    return lab.make_step()


@pytest.mark.parametrize("at", range(1, 12))
def test_resuming_at_any_step_gives_the_uninterrupted_run_to_the_bit(lab, uninterrupted, used_step, tmp_path, at):
    results = {}

    _, checkpointer = go_on(lab, uninterrupted["states"], at, tmp_path, step=used_step, results=results)

    expected = {n: result for n, result in uninterrupted["results"].items() if n > at}
    assert results == expected
    tensors, values = checkpointer.states[12]
    for name, tensor in uninterrupted["states"][12][0].items():
        assert tensors[name].tobytes() == tensor.tobytes(), name
    assert without_save_every(values) == without_save_every(uninterrupted["states"][12][1])


def without_save_every(values):
    train_values = {k: v for k, v in values["trainloop"]["train"].items() if k != "save_every"}
    return {**values, "trainloop": {**values["trainloop"], "train": train_values}}


@pytest.mark.slow
def test_dropout_resumes_to_the_bit_twice_and_is_off_in_evaluation(lab, tmp_path):
    config, results = lab.make_config(save_every=1, evaluate_every=5), {}

    def go(states, at, step, results):
        evaluator, checkpointer = Evaluator(step.model), lab.MemoryCheckpointer(states, at)
        batches = lab.batches_of(lab.make_rows(), 4)
        return train(
            step,
            batches,
            run_dir=tmp_path,
            checkpointer=checkpointer,
            progress=None,
            on_step=results.__setitem__,
            evaluate=lambda: evaluator([next(batches(0))]),
        ), checkpointer

    whole = lab.make_step(config, has_dropout=True)
    _, first = go({}, None, whole, results)
    second_results, third_results = {}, {}
    _, second = go(first.states, 3, lab.make_step(config, has_dropout=True), second_results)
    last = lab.make_step(config, has_dropout=True)
    _, third = go(second.states, 7, last, third_results)

    assert {**second_results, **third_results} == {n: result for n, result in results.items() if n > 3}
    for name, tensor in first.states[12][0].items():
        assert third.states[12][0][name].tobytes() == tensor.tobytes(), name
    assert int(first.states[12][0]["model.counter.forward"]) == 24
    without, _ = go_on(lab, {}, None, tmp_path / "plain", config=config)
    assert not np.array_equal(lab.weights_of(without)["norm.weight"], lab.weights_of(last)["norm.weight"])
    tensors, values = first.states[7]
    forgotten = {7: ({**tensors, "model.counter.forward": np.array(0, np.int32)}, values)}
    wrong = {}
    go(forgotten, 7, last, wrong)
    assert wrong[8] != results[8]


@pytest.mark.parametrize("spoiled", ["optimizer.exp_avg.mlp.up.bias", "model.norm.weight"])
def test_a_small_change_in_the_state_would_be_seen(lab, uninterrupted, used_step, tmp_path, spoiled):
    tensors, values = uninterrupted["states"][6]
    tensors = {name: np.array(tensor) for name, tensor in tensors.items()}
    tensors[spoiled].ravel()[:1] *= np.float32(1 + 1e-4)

    step, _ = go_on(lab, {6: (tensors, values)}, 6, tmp_path, step=used_step)

    found = lab.weights_of(step)
    assert any(not np.array_equal(found[name], value) for name, value in uninterrupted["weights"].items())


def test_a_wrong_data_position_would_be_seen(lab, uninterrupted, used_step, tmp_path):
    tensors, values = uninterrupted["states"][6]
    results = {}

    go_on(lab, {6: (tensors, {**values, "samples_consumed": 20})}, 6, tmp_path, step=used_step, results=results)

    assert results[7] != uninterrupted["results"][7]


def test_the_metrics_file_goes_on_without_a_gap_or_a_repeat(lab, tmp_path):
    """Lines every 5 steps, state of step 7, lines up to step 12 already there and torn: the same file comes out."""
    config = lab.make_config(log_every=5, save_every=7)
    _, first = go_on(lab, {}, None, tmp_path, config=config)
    before = (tmp_path / "metrics.jsonl").read_text()
    (tmp_path / "metrics.jsonl").write_text(before + '{"kind": "train", "st')

    go_on(lab, first.states, 7, tmp_path, config=config)

    def untimed(text):
        return [{k: v for k, v in json.loads(row).items() if k not in TIMINGS} for row in text.splitlines()]

    assert untimed((tmp_path / "metrics.jsonl").read_text()) == untimed(before)
    assert [line.get("step") for line in untimed(before)] == [None, 5, 10, 12]


def test_a_fresh_run_sets_the_lines_of_an_earlier_one_aside(lab, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("something of value\n")

    go_on(lab, {}, None, tmp_path, stop_after=1)

    assert (tmp_path / "metrics.1.jsonl").read_text() == "something of value\n"


def test_a_finished_run_has_nothing_left_to_do(lab, uninterrupted, tmp_path):
    results = {}

    _, checkpointer = go_on(lab, uninterrupted["states"], 12, tmp_path, results=results)

    assert results == {}
    assert checkpointer.states.keys() == uninterrupted["states"].keys()


def test_a_window_with_a_loss_that_is_not_finite_survives_the_save(lab, uninterrupted, tmp_path):
    tensors, values = uninterrupted["states"][6]
    values = {**values, "trainloop": {**values["trainloop"], "window_loss": None, "window_tokens": 9}}

    go_on(lab, {6: (tensors, values)}, 6, tmp_path)

    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()[1:]]
    assert lines[0]["loss"] is None
    assert math.isfinite(lines[1]["loss"])


def test_all_differing_tensors_are_named_at_once_and_nothing_is_applied(lab, uninterrupted, tmp_path):
    tensors, values = uninterrupted["states"][6]
    tensors = dict(tensors)
    tensors["model.lm_headd.weight"] = tensors.pop("model.lm_head.weight")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float64)
    tensors["optimizer.exp_avg.mlp.up.weight"] = tensors["optimizer.exp_avg.mlp.up.weight"][:3]
    step = lab.make_step()
    before = lab.weights_of(step)

    with pytest.raises(ResumeError) as caught:
        train(
            step,
            lab.batches_of(lab.make_rows(), 4),
            run_dir=tmp_path,
            checkpointer=lab.MemoryCheckpointer({6: (tensors, values)}),
            tokenizer_fingerprint="sha256:1",
            progress=None,
        )

    for part in (
        "model.lm_head.weight: missing",
        "model.lm_headd.weight: unexpected",
        "model.norm.weight: saved float64, the model has float32",
        "optimizer.exp_avg.mlp.up.weight: saved shape [3, 8], the model has [8, 8]",
    ):
        assert part in str(caught.value)
    for name, value in lab.weights_of(step).items():
        np.testing.assert_array_equal(value, before[name])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [{"steps": 20}, {"schedule": "linear"}, {"global_batch_size": 8}, {"seed": 1}, {"learning_rate": 0.03}],
)
def test_changes_that_change_the_numbers_are_refused_unless_allowed(lab, uninterrupted, tmp_path, change, caplog):
    (name,) = change
    with pytest.raises(ResumeError, match=f"train.{name}: saved .*; set it back, or name it in train.allow_changes"):
        go_on(lab, uninterrupted["states"], 6, tmp_path, config=lab.make_config(**change))

    go_on(
        lab, uninterrupted["states"], 6, tmp_path, config=lab.make_config(**change, allow_changes=(name,)), stop_after=6
    )
    assert f"train.{name}: saved" in caplog.text


def test_another_micro_batch_is_allowed_and_said(lab, uninterrupted, tmp_path, caplog):
    step, _ = go_on(lab, uninterrupted["states"], 6, tmp_path, config=lab.make_config(micro_batch_size=4))

    assert "train.micro_batch_size: saved 2, now 4; the same numbers up to rounding" in caplog.text
    for name, value in lab.weights_of(step).items():
        np.testing.assert_allclose(value, uninterrupted["weights"][name], atol=1e-4)


def test_another_tokenizer_is_refused(lab, uninterrupted, tmp_path):
    with pytest.raises(ResumeError, match="tokenizer_fingerprint: saved sha256:1, now sha256:2"):
        go_on(lab, uninterrupted["states"], 6, tmp_path, fingerprint="sha256:2")


def test_a_state_of_another_program_is_refused(lab, uninterrupted, tmp_path):
    with pytest.raises(ResumeError, match=r"values.trainloop: missing"):
        go_on(lab, {6: (uninterrupted["states"][6][0], {"samples_consumed": 3})}, 6, tmp_path)


def test_a_state_of_the_first_version_is_refused_clearly(lab, uninterrupted, tmp_path):
    tensors, values = uninterrupted["states"][6]
    old = {**values, "trainloop": {k: v for k, v in values["trainloop"].items() if k != "version"}}

    with pytest.raises(ResumeError, match=r"values.trainloop.version: found None, expected 2; another version"):
        go_on(lab, {6: (tensors, old)}, 6, tmp_path)
