"""Tests of the running average of the weights and of freezing, both across a resume."""

import numpy as np
import pytest
from ms_trainloop.errors import ConfigError
from ms_trainloop.evaluation import Evaluator
from ms_trainloop.loop import train
from ms_trainloop.step import TrainStep


def run(lab, folder, config, *, states=None, at=None, evaluate=None, on_step=None):
    model = lab.LayeredModel()
    step = TrainStep(model, config, parameters=model.named)
    checkpointer = lab.MemoryCheckpointer(states, at)
    train(
        step,
        lab.batches_of(lab.make_rows(), 4),
        run_dir=folder,
        checkpointer=checkpointer,
        progress=None,
        evaluate=None if evaluate is None else lambda: evaluate(step),
        on_step=None if on_step is None else lambda number, result: on_step(number, step),
    )
    return step, checkpointer


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_average_and_frozen_weights_are_exact_across_a_resume(lab, tmp_path, precision):
    config = lab.make_config(ema_decay=0.8, frozen=["embedding*"], save_every=1, precision=precision)
    start = lab.LayeredModel().named["embedding.weight"].asnumpy()
    weights = []
    step, first = run(lab, tmp_path, config, on_step=lambda _, step: weights.append(lab.weights_of(step)))

    _, second = run(lab, tmp_path, config, states=first.states, at=5)

    for name, tensor in first.states[12][0].items():
        assert second.states[12][0][name].tobytes() == tensor.tobytes(), name
    np.testing.assert_array_equal(first.states[12][0]["model.embedding.weight"], start)
    assert "optimizer.ema.embedding.weight" not in first.states[12][0]
    expected = lab.LayeredModel().named["up.weight"].asnumpy().astype(np.float64)
    for each in weights:
        expected = 0.8 * expected + 0.2 * each["up.weight"]
    np.testing.assert_allclose(step.optimizer.slots["ema"]["up.weight"].asnumpy(), expected, atol=1e-6)
    assert np.abs(expected - weights[-1]["up.weight"]).max() > 1e-3


def test_a_skipped_step_leaves_the_average_as_it_is(lab):
    model = lab.FragileModel("exp")
    step = TrainStep(model, lab.make_config(ema_decay=0.5), parameters=model.named)
    batches = lab.trapped_batches(lab.make_rows(), 4, [5])(0)
    step.run(next(batches))
    before = np.array(step.optimizer.slots["ema"]["lm_head.weight"].asnumpy())

    result = step.run(next(batches))

    assert not result.is_applied
    np.testing.assert_array_equal(step.optimizer.slots["ema"]["lm_head.weight"].asnumpy(), before)


@pytest.mark.parametrize("precision", ["float32", "float16"])
@pytest.mark.slow
def test_evaluating_the_average_leaves_no_trace(lab, tmp_path, precision):
    config = lab.make_config(ema_decay=0.8, evaluate_ema=True, evaluate_every=3, precision=precision)
    batch = next(lab.batches_of(lab.make_rows(), 4)(0))
    evaluators, found = {}, []

    def evaluate(step):
        evaluator = evaluators.setdefault(id(step), Evaluator(step.model))
        found.append((evaluator([batch]), lab.weights_of(step)))
        return found[-1][0]

    step, _ = run(lab, tmp_path / "a", config, evaluate=evaluate)
    plain, _ = run(lab, tmp_path / "b", lab.make_config(ema_decay=0.8, precision=precision))

    for name, value in lab.weights_of(plain).items():
        np.testing.assert_array_equal(lab.weights_of(step)[name], value)
    averaged = evaluators[id(step)]
    with step.averaged():
        assert averaged([batch]) == found[-1][0]
    assert averaged([batch]) != found[-1][0]
    step.state.require_equal_copies()


def test_patterns_that_match_nothing_and_an_average_that_is_not_kept_are_refused(lab):
    with pytest.raises(ConfigError, match=r"train.frozen: 'blocks\*' matches no parameter; the parameters are embed"):
        lab.make_step(lab.make_config(frozen=["blocks*"]))
    with pytest.raises(ConfigError, match=r"train.groups: 'blocks\*' matches no parameter"):
        lab.make_step(lab.make_config(groups=[{"pattern": "blocks*"}]))
    with pytest.raises(ConfigError, match=r"train.evaluate_ema: found True, expected false while train.ema_decay is 0"):
        lab.make_config(evaluate_ema=True)
    with pytest.raises(ConfigError, match=r"train.ema_decay: found 0"):
        lab.make_step().averaged()
