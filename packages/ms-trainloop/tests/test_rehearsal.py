"""Tests of the whole preflight: each kind of fault is found with its cause, and nothing is left changed."""

import io
import logging

import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from ms_trainloop import memory, rehearsal
from ms_trainloop.errors import BatchError, PreflightError
from ms_trainloop.loop import train
from ms_trainloop.rehearsal import check_fall, rehearse, require_sound
from ms_trainloop.step import TrainStep


class Stopped(nn.Cell):
    """A model with one parameter behind a stop_gradient and one that is not used at all."""

    def __init__(self, lab):
        super().__init__()
        self.inner = lab.TinyModel()
        self.idle = Parameter(Tensor(np.ones(3, np.float32)), name="idle.weight")
        self.cut = Parameter(Tensor(np.ones(1, np.float32)), name="cut.weight")
        self.named = {**self.inner.named, "idle.weight": self.idle, "cut.weight": self.cut}

    def construct(self, input_ids, position_ids=None, segment_ids=None):
        return self.inner(input_ids, position_ids, segment_ids) * ops.stop_gradient(self.cut)


def first_batch(lab):
    return next(lab.batches_of(lab.make_rows(), 4)(0))


def test_a_sound_run_has_no_finding_and_is_left_unchanged_to_the_bit(lab, uninterrupted, tmp_path):
    results, stream = {}, io.StringIO()
    step = lab.make_step(lab.make_config(preflight="full"))

    train(
        step,
        lab.batches_of(lab.make_rows(), 4),
        run_dir=tmp_path,
        vocab_size=lab.VOCAB,
        on_step=results.__setitem__,
        progress=stream,
        stop_after=5,
    )

    shown = stream.getvalue()
    assert "preflight: first loss: 3." in shown
    assert "preflight: memory, at least: weights 1.79 kB" in shown
    assert "REFUSED" not in shown
    assert results == {n: result for n, result in uninterrupted["results"].items() if n <= 5}
    assert len(step.compile_cache) == 1


def test_parameters_without_a_gradient_are_named(lab):
    model = Stopped(lab)
    step = TrainStep(model, lab.make_config(), parameters=model.named)

    found = rehearse(step, first_batch(lab), vocab_size=lab.VOCAB)

    with pytest.raises(PreflightError, match=r"zero everywhere for cut.weight, idle.weight .*train.frozen"):
        require_sound(found)
    frozen = TrainStep(Stopped(lab), lab.make_config(frozen=["idle*", "cut*"]))
    assert not [each for each in rehearse(frozen, first_batch(lab), vocab_size=lab.VOCAB).findings if each.is_fatal]


def test_a_rate_that_is_too_high_is_seen_on_the_repeated_batch(lab):
    step = lab.make_step(lab.make_config(learning_rate=50.0, max_grad_norm=0.0))

    with pytest.raises(PreflightError, match=r"the rate is too high \(train.learning_rate 50\)"):
        require_sound(rehearse(step, first_batch(lab), vocab_size=lab.VOCAB))


def test_the_fall_of_the_loss_is_judged():
    assert check_fall([3.0, 2.0], 0.1) == []
    assert "hardly move" in str(check_fall([3.0, 2.9999], 1e-9)[0])
    assert "too high" in str(check_fall([3.0, 9.0], 10.0)[0])
    assert "too high" in str(check_fall([3.0, float("nan")], 10.0)[0])


def test_a_model_that_overflows_is_named_with_its_cell(lab):
    model = lab.FragileModel("exp")
    step = TrainStep(model, lab.make_config(), parameters=model.named)
    batch = next(lab.trapped_batches(lab.make_rows(), 4, [2])(0))

    with pytest.raises(PreflightError, match=r"first gradient: found norm nan; .* cell steep, lab.py:\d+ `grown"):
        require_sound(rehearse(step, batch, vocab_size=lab.VOCAB))


def test_a_first_scale_that_overflows_is_only_a_note(lab):
    model = lab.FragileModel("none")
    config = lab.make_config(precision="float16", loss_scale=2.0**24, keep_float32=[])
    step = TrainStep(model, config, parameters=model.named)

    found = rehearse(step, next(lab.trapped_batches(lab.make_rows(), 4, [])(0)), vocab_size=lab.VOCAB)

    require_sound(found)
    assert any("the first loss scale overflows float16" in line for line in found.lines())
    assert float(step.loss_scale.asnumpy()) == 2.0**24


def test_a_broken_batch_ends_the_preflight_before_a_step(lab, tmp_path):
    batch = first_batch(lab)
    batch["labels"] = batch["input_ids"].copy()
    step = lab.make_step(lab.make_config(preflight="full"))

    assert "labels are not shifted" in str(rehearse(step, batch, vocab_size=lab.VOCAB).findings[0])
    with pytest.raises(BatchError, match="labels are not shifted"):
        train(step, lambda samples: [batch], run_dir=tmp_path, progress=None)
    assert step.compile_cache == set()


def test_too_little_memory_is_said_before_the_first_step(lab, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(rehearsal, "available_memory", lambda step: 1000)

    with caplog.at_level(logging.WARNING):
        train(lab.make_step(), lab.batches_of(lab.make_rows(), 4), run_dir=tmp_path, progress=None, stop_after=1)

    assert "a step needs at least" in caplog.text
    assert "there are 1 kB" in caplog.text


def test_the_memory_estimate_counts_every_array(lab):
    step = lab.make_step(lab.make_config(optimizer_state="bfloat16"))
    count = lab.VOCAB * lab.HIDDEN * 2 + lab.HIDDEN * lab.HIDDEN + 2 * lab.HIDDEN

    found = memory.estimate_memory(step, seq_length=lab.SEQ, vocab_size=lab.VOCAB)

    assert found == {
        "weights": 4 * count,
        "optimizer": 2 * 2 * count,
        "gradients": 4 * count * 2,  # two micro-batches: their sum and the next one's
        "logits": 3 * 4 * 2 * lab.SEQ * lab.VOCAB,
        "total": 4 * count + 4 * count + 8 * count + 12 * 2 * lab.SEQ * lab.VOCAB,
    }
    assert memory.available_memory(step) > 10**8
