"""Tests of the training step: the right gradient for any micro-batching, finite checks, counters."""

import numpy as np
import pytest
from ms_trainloop.errors import ConfigError, TrainLoopError
from ms_trainloop.schedules import learning_rate
from ms_trainloop.step import TrainStep


def reference_step(weight, batch, clip):
    """Loss, norm and clipped gradient of LinearModel in float64."""
    ids, labels = batch["input_ids"].ravel(), batch["labels"].ravel()
    logits = weight[ids]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    kept = labels >= 0
    loss = -np.log(p[kept, labels[kept]]).sum()
    p[kept, labels[kept]] -= 1
    gradient = np.zeros_like(weight)
    np.add.at(gradient, ids[kept], p[kept])
    gradient /= kept.sum()
    norm = np.sqrt((gradient**2).sum())
    return loss, kept.sum(), norm, gradient * min(1, clip / (norm + 1e-6))


@pytest.mark.parametrize("micro_batch_size", [4, 1])
def test_eight_steps_equal_a_float64_reference(lab, micro_batch_size):
    config = lab.make_config(micro_batch_size=micro_batch_size, max_grad_norm=0.1, learning_rate=0.01)
    model = lab.LinearModel()
    weight = model.head.asnumpy().astype(np.float64)
    step = TrainStep(model, config)
    m = v = 0.0
    for t, batch in zip(range(1, 9), lab.batches_of(lab.make_rows(), 4)(0), strict=False):
        result = step.run(batch)

        loss, tokens, norm, gradient = reference_step(weight, batch, 0.1)
        rate = learning_rate(config, t - 1)
        m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
        weight = weight * (1 - rate * 0.1) - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
        assert result.tokens == tokens
        np.testing.assert_allclose([result.loss_sum, result.grad_norm], [loss, norm], rtol=2e-6)
        assert result.learning_rate == pytest.approx(rate, rel=1e-6)
        assert norm > 0.1, "clipping must be at work for this test to mean something"
        np.testing.assert_allclose(model.head.asnumpy(), weight, atol=2e-6)


def uneven_batch(lab):
    """Two rows with 1 and 4 labels."""
    batch = lab.make_batch(lab.make_rows(2, seed=3))
    batch["labels"][:] = -100
    batch["labels"][0, 2] = 7
    batch["labels"][1, 1:5] = [3, 0, 11, 5]
    return batch


def gradients_of(lab, batch, micro_batch_size):
    """What the optimizer was given: after the first step exp_avg is 0.1 times the gradient."""
    config = lab.make_config(global_batch_size=2, micro_batch_size=micro_batch_size, max_grad_norm=0.0)
    step = lab.make_step(config)
    result = step.run(batch)
    return result, {name: p.asnumpy() / 0.1 for name, p in step.optimizer.slots["exp_avg"].items()}


@pytest.fixture(scope="module")
def joined(lab):
    return gradients_of(lab, uneven_batch(lab), 2)


def test_micro_batches_of_one_and_four_labels_equal_one_batch_of_both(lab, joined):
    result, expected = joined

    split, found = gradients_of(lab, uneven_batch(lab), 1)

    assert result.tokens == split.tokens == 5
    assert split.loss_sum == pytest.approx(result.loss_sum, rel=1e-6)
    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, expected[name], atol=1e-6)


def test_the_mean_of_the_micro_batches_means_would_be_seen(lab, joined):
    halves = []
    for row in (0, 1):
        only = uneven_batch(lab)
        only["labels"][1 - row] = -100
        halves.append(gradients_of(lab, only, 2)[1])

    wrong = {name: (halves[0][name] + halves[1][name]) / 2 for name in joined[1]}

    assert max(np.abs(wrong[name] - joined[1][name]).max() for name in wrong) > 1e-3


def test_a_second_rank_is_summed_by_tokens_not_by_means(lab, joined):
    """all_reduce doubles everything, as a second rank with the same rows would: the mean gradient is the same."""
    batch = uneven_batch(lab)
    alone, expected = joined
    config = lab.make_config(global_batch_size=4, micro_batch_size=2, max_grad_norm=0.0)
    step = lab.make_step(config, all_reduce=lab.Doubling(), world_size=2)

    result = step.run(batch, wants_stop=True)

    assert (result.tokens, result.stop_votes) == (10, 2)
    assert result.loss_sum == pytest.approx(2 * alone.loss_sum)
    for name, p in step.optimizer.slots["exp_avg"].items():
        np.testing.assert_allclose(p.asnumpy() / 0.1, expected[name], atol=1e-6)


def test_the_parameters_of_a_deep_model_compile_with_accumulation(lab):
    """Loops over parameters nest calls, and graph mode allows 1000: 12 layers did not compile."""
    batch = uneven_batch(lab)
    config = lab.make_config(global_batch_size=2, micro_batch_size=1, max_grad_norm=0.0, ema_decay=0.5)
    model = lab.WideModel()
    weight = model.head.asnumpy().astype(np.float64)

    result = TrainStep(model, config).run(batch)

    _, _, norm, _ = reference_step(weight, batch, np.inf)
    assert result.grad_norm == pytest.approx(norm * np.sqrt(161), rel=2e-6)
    assert result.is_applied


@pytest.mark.parametrize("mode", ["graph", "pynative"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_auxiliary_loss_is_added_and_weighs_by_its_labels(lab, mode, ranks):
    batch = uneven_batch(lab)
    settings = {"micro_batch_size": 1, "max_grad_norm": 0.0, "mode": mode}
    config = lab.make_config(global_batch_size=2 * ranks, **settings)
    model = lab.LoadedModel()
    weight = model.head.asnumpy().astype(np.float64)
    reduce = {"all_reduce": lab.Doubling(), "world_size": 2} if ranks == 2 else {}
    step = TrainStep(model, config, **reduce)

    result = step.run(batch)

    loss, tokens, _, expected = reference_step(weight, batch, np.inf)
    auxiliary = 0.0
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        share = (labels >= 0).sum() / tokens
        auxiliary += share * 0.3 * np.square(weight[ids]).mean()
        np.add.at(expected, ids, share * 0.6 * weight[ids] / weight[ids].size)
    (moment,) = step.optimizer.slots["exp_avg"].values()
    np.testing.assert_allclose(moment.asnumpy() / 0.1, expected, atol=1e-6)
    assert (result.loss_sum, result.tokens) == (pytest.approx(ranks * loss, rel=2e-6), ranks * tokens)
    assert result.auxiliary_loss == pytest.approx(auxiliary, rel=2e-6)
    assert lab.make_step(lab.make_config(**{**settings, "global_batch_size": 2})).run(batch).auxiliary_loss is None


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_a_nan_skips_the_step_and_leaves_everything_unchanged(lab, mode):
    step = lab.make_step(lab.make_config(mode=mode))
    batches = lab.batches_of(lab.make_rows(), 4)(0)
    step.run(next(batches))
    norm = step.named_parameters["norm.weight"]
    good = np.array(norm.asnumpy())
    lab.ops.assign(norm, lab.Tensor(np.where(np.arange(lab.HIDDEN) == 2, np.nan, good).astype(np.float32)))
    before = lab.weights_of(step), {n: np.array(p.asnumpy()) for n, p in step.optimizer.slots["exp_avg_sq"].items()}

    result = step.run(next(batches))

    assert not result.is_applied
    assert not np.isfinite(result.grad_norm)
    after = lab.weights_of(step), {n: p.asnumpy() for n, p in step.optimizer.slots["exp_avg_sq"].items()}
    for ours, theirs in zip(before, after, strict=True):
        for name, value in ours.items():
            np.testing.assert_array_equal(theirs[name], value)
    assert [int(c.asnumpy()) for c in (step.step, step.updates, step.skipped_in_row)] == [2, 1, 1]
    lab.ops.assign(norm, lab.Tensor(good))
    assert step.run(next(batches)).is_applied
    assert [int(c.asnumpy()) for c in (step.step, step.updates, step.skipped_in_row)] == [3, 2, 0]


def test_a_batch_without_labels_changes_nothing(lab):
    step = lab.make_step()
    batch = lab.make_batch(lab.make_rows(4))
    batch["labels"][:] = -100
    before = lab.weights_of(step)

    result = step.run(batch)

    assert (result.loss_sum, result.tokens, result.is_applied) == (0.0, 0, False)
    for name, value in lab.weights_of(step).items():
        np.testing.assert_array_equal(value, before[name])


def test_the_step_compiles_once(lab):
    step = lab.make_step()
    for _, batch in zip(range(3), lab.batches_of(lab.make_rows(), 4)(0), strict=False):
        step.run(batch)

    assert len(step.compile_cache) == 1


def test_pynative_agrees_within_rounding(lab):
    weights = []
    for mode in ("graph", "pynative"):
        step = lab.make_step(lab.make_config(mode=mode))
        for _, batch in zip(range(3), lab.batches_of(lab.make_rows(), 4)(0), strict=False):
            step.run(batch)
        weights.append(lab.weights_of(step))

    for name, value in weights[0].items():
        np.testing.assert_allclose(weights[1][name], value, atol=1e-5)


def test_a_precision_that_is_not_possible_is_refused(lab):
    with pytest.raises(ConfigError, match=r"train.precision: bfloat16 has no MatMul"):
        lab.make_step(lab.make_config(precision="bfloat16"))


def test_parameters_must_be_the_models_own_all_of_them(lab):
    model = lab.TinyModel()
    named = dict(model.named)
    named["stranger"] = lab.TinyModel().head
    named.pop("norm.weight")

    with pytest.raises(TrainLoopError, match=r"norm.weight of the model is not among them; stranger is not"):
        TrainStep(model, lab.make_config(), parameters=named)


def test_weights_replaced_behind_the_compiled_step_are_refused_not_ignored(lab):
    step = lab.make_step()
    batch = next(lab.batches_of(lab.make_rows(), 4)(0))
    step.run(batch)
    weight = step.named_parameters["lm_head.weight"]
    lab.ops.assign(weight, lab.Tensor(np.array(weight.asnumpy())))
    step.run(batch)
    weight.set_data(lab.Tensor(np.array(weight.asnumpy())))

    with pytest.raises(TrainLoopError, match=r"lm_head.weight: given new storage after the step was compiled"):
        step.run(batch)


def test_frozen_parameters_are_untouched_and_have_no_optimizer_state(lab):
    model = lab.TinyModel()
    model.embedding.requires_grad = False
    before = np.array(model.embedding.asnumpy())
    step = TrainStep(model, lab.make_config(), parameters=model.named)

    step.run(next(lab.batches_of(lab.make_rows(), 4)(0)))

    np.testing.assert_array_equal(model.embedding.asnumpy(), before)
    assert "embedding.weight" not in step.optimizer.slots["exp_avg"]
    assert "embedding.weight" in step.named_parameters
