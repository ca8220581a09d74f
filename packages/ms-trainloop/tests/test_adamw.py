"""Tests of AdamW against torch's formula, written out in float64."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from ms_trainloop.adamw import AdamW
from ms_trainloop.config import TrainConfig
from ms_trainloop.parameter_groups import treat

NAMES = {"mlp.up.weight": (5, 4), "mlp.up.bias": (4,), "norm.weight": (4,)}


def make_config(**changes):
    defaults = {
        "steps": 20,
        "global_batch_size": 1,
        "micro_batch_size": 1,
        "learning_rate": 1.0,
        "weight_decay": 0.1,
        "beta2": 0.999,
    }
    return TrainConfig(**{**defaults, **changes})


def torch_adamw(weights, gradients, config, decayed, *, is_corrected=True):
    """torch.optim.AdamW's documented algorithm in float64; `is_corrected=False` is MindSpore's AdamWeightDecay."""
    m = {name: np.zeros_like(w) for name, w in weights.items()}
    v = {name: np.zeros_like(w) for name, w in weights.items()}
    for t, (rate, step_gradients) in enumerate(gradients, 1):
        for name, g in step_gradients.items():
            weights[name] = weights[name] * (1 - rate * (config.weight_decay if name in decayed else 0))
            m[name] = config.beta1 * m[name] + (1 - config.beta1) * g
            v[name] = config.beta2 * v[name] + (1 - config.beta2) * g**2
            m_hat = m[name] / (1 - config.beta1**t if is_corrected else 1)
            v_hat = v[name] / (1 - config.beta2**t if is_corrected else 1)
            weights[name] = weights[name] - rate * m_hat / (np.sqrt(v_hat) + config.epsilon)
    return weights


def run_ours(start, gradients, config):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    parameters = {name: Parameter(Tensor(w.astype(np.float32)), name=name) for name, w in start.items()}
    cell = AdamW(config, parameters)
    for t, (rate, step_gradients) in enumerate(gradients, 1):
        tensors = mindspore.mutable(tuple(Tensor(g.astype(np.float32)) for g in step_gradients.values()))
        cell(tensors, Tensor(np.float32(1)), Tensor(np.float32(rate)), Tensor(np.int32(t)))
    return {name: np.array(p.asnumpy()) for name, p in parameters.items()}


@pytest.fixture(scope="module")
def problem():
    draw = np.random.default_rng(0).normal
    start = {name: draw(0, 1, shape).astype(np.float32).astype(np.float64) for name, shape in NAMES.items()}
    steps = [(1e-3 * (t + 1), {n: draw(0, 0.1, s).astype(np.float32) for n, s in NAMES.items()}) for t in range(10)]
    return start, steps


def test_ten_steps_equal_torch(problem):
    start, steps = problem
    config = make_config()

    ours = run_ours(start, steps, config)

    expected = torch_adamw(dict(start), steps, config, {"mlp.up.weight"})
    for name, weight in ours.items():
        np.testing.assert_allclose(weight, expected[name], atol=1e-6)


@pytest.mark.parametrize("fault", ["no bias correction", "decay on everything"])
def test_the_comparison_with_torch_finds_a_fault(problem, fault):
    start, steps = problem
    config = make_config()

    ours = run_ours(start, steps, config)

    decayed = set(NAMES) if fault == "decay on everything" else {"mlp.up.weight"}
    wrong = torch_adamw(dict(start), steps, config, decayed, is_corrected=fault != "no bias correction")
    assert max(np.abs(ours[name] - wrong[name]).max() for name in NAMES) > 1e-4


def test_the_first_step_at_rate_one_and_gradient_one_moves_by_one():
    config = make_config(weight_decay=0.0)

    moved = run_ours({"w": np.zeros((2, 2))}, [(1.0, {"w": np.ones((2, 2))})], config)

    np.testing.assert_allclose(moved["w"], -1.0, atol=1e-6)


def test_bias_correction_is_exact_late_in_a_run():
    config = make_config(weight_decay=0.0, beta2=0.95)
    start, steps = {"w": np.ones((2, 2))}, [(1e-3, {"w": np.full((2, 2), 0.5, np.float32)})] * 60

    ours = run_ours(start, steps, config)

    np.testing.assert_allclose(ours["w"], torch_adamw(dict(start), steps, config, ())["w"], atol=1e-6)


def test_only_matrices_that_are_no_embedding_decay_by_default():
    config = make_config()
    shapes = {
        "blocks.0.mlp.up.weight": (4, 4),
        "lm_head.weight": (4, 4),
        "embedding.weight": (4, 4),
        "position_embedding.weight": (4, 4),
        "blocks.0.attention_norm.weight": (4,),
        "blocks.0.attention.query.bias": (4,),
        "gain": (4,),
    }

    found = [name for name, shape in shapes.items() if treat(name, shape, config).weight_decay]

    assert found == ["blocks.0.mlp.up.weight", "lm_head.weight"]
    assert treat("embedding.weight", (4, 4), make_config(no_decay=())).weight_decay == 0.1
