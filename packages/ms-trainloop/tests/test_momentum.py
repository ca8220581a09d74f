"""Tests of SGD and Muon against torch's documented formulas in float64, and of which parameters take which rule."""

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from ms_trainloop.adamw import AdamW
from ms_trainloop.config import TrainConfig, from_mapping
from ms_trainloop.errors import ConfigError
from ms_trainloop.optimizer import Optimizer
from ms_trainloop.parameter_groups import treat

SHAPES = {"wide.weight": (3, 5), "tall.weight": (6, 4), "norm.weight": (4,)}


def make_config(**changes):
    defaults = {
        "steps": 20,
        "global_batch_size": 1,
        "micro_batch_size": 1,
        "learning_rate": 1.0,
        "momentum": 0.9,
        "beta2": 0.95,
    }
    return from_mapping(TrainConfig, {**defaults, **changes}, "train")


@pytest.fixture(scope="module")
def problem():
    draw = np.random.default_rng(0).normal
    start = {name: draw(0, 1, shape).astype(np.float32).astype(np.float64) for name, shape in SHAPES.items()}
    return start, [{name: draw(0, 0.1, shape).astype(np.float32) for name, shape in SHAPES.items()} for _ in range(10)]


def run_ours(problem, config, rate=0.01):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    start, steps = problem
    parameters = {name: Parameter(Tensor(w.astype(np.float32)), name=name) for name, w in start.items()}
    cell = Optimizer(config, parameters, {})
    for t, gradients in enumerate(steps, 1):
        tensors = mindspore.mutable(tuple(Tensor(gradients[name]) for name in start))
        cell(tensors, Tensor(np.float32(1)), Tensor(np.float32(rate)), Tensor(np.int32(t)))
    return {name: np.array(p.asnumpy()) for name, p in parameters.items()}, cell


def torch_sgd(weight, gradients, *, rate, decay, momentum, nesterov):
    buffer = np.zeros_like(weight)
    for g in gradients:
        g = g + decay * weight
        buffer = momentum * buffer + g
        weight = weight - rate * (g + momentum * buffer if nesterov else buffer)
    return weight


def torch_muon(weight, gradients, *, rate, decay, momentum, nesterov=True, num_newton_schulz=5):
    buffer = np.zeros_like(weight)
    for g in gradients:
        buffer = momentum * buffer + (1 - momentum) * g
        x = (1 - momentum) * g + momentum * buffer if nesterov else buffer
        x = x.T if weight.shape[0] > weight.shape[1] else x
        x = x / max(np.sqrt((x**2).sum()), 1e-7)
        for _ in range(num_newton_schulz):
            gram = x @ x.T
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        x = x.T if weight.shape[0] > weight.shape[1] else x
        weight = weight * (1 - rate * decay) - rate * 0.2 * np.sqrt(max(weight.shape)) * x
    return weight


def torch_adamw(weight, gradients, *, rate, decay):
    m = v = np.zeros_like(weight)
    for t, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
        weight = weight * (1 - rate * decay) - rate * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
    return weight


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_equals_torch(problem, nesterov):
    ours, _ = run_ours(problem, make_config(optimizer="sgd", nesterov=nesterov))

    for name, weight in ours.items():
        decay = 0.0 if name == "norm.weight" else 0.1
        options = {"rate": 0.01, "decay": decay, "momentum": 0.9}
        gradients = [step[name] for step in problem[1]]
        expected = torch_sgd(problem[0][name], gradients, nesterov=nesterov, **options)
        wrong = torch_sgd(problem[0][name], gradients, nesterov=not nesterov, **options)
        np.testing.assert_allclose(weight, expected, atol=1e-6)
        assert np.abs(weight - wrong).max() > 1e-4


def test_muon_equals_torch_on_matrices_and_the_rest_takes_adamw(problem):
    ours, cell = run_ours(problem, make_config(optimizer="muon"))

    for name, weight in ours.items():
        gradients = [step[name] for step in problem[1]]
        if name == "norm.weight":
            expected = torch_adamw(problem[0][name], gradients, rate=0.01, decay=0.0)
        else:
            expected = torch_muon(problem[0][name], gradients, rate=0.01, decay=0.1, momentum=0.9)
            wrong = torch_muon(problem[0][name], gradients, rate=0.01, decay=0.1, momentum=0.9, num_newton_schulz=4)
            assert np.abs(weight - wrong).max() > 1e-4
        np.testing.assert_allclose(weight, expected, atol=3e-6)  # float32 through 15 products
    assert {slot: sorted(states) for slot, states in cell.slots.items()} == {
        "exp_avg": ["norm.weight"],
        "exp_avg_sq": ["norm.weight"],
        "momentum_buffer": ["tall.weight", "wide.weight"],
    }


def test_groups_change_rate_decay_and_rule_of_the_parameters_they_match(problem):
    groups = [
        {"pattern": "tall*", "learning_rate_factor": "1e-1", "weight_decay": 0.0},
        {"pattern": "*.weight", "optimizer": "sgd"},
    ]
    ours, _ = run_ours(problem, make_config(groups=groups))

    gradients = {name: [step[name] for step in problem[1]] for name in SHAPES}
    expected = {
        "tall.weight": torch_adamw(problem[0]["tall.weight"], gradients["tall.weight"], rate=0.001, decay=0.0),
        **{
            name: torch_sgd(
                problem[0][name], gradients[name], rate=0.01, momentum=0.9, nesterov=True,
                decay=0.1 if name == "wide.weight" else 0.0,
            )
            for name in ("wide.weight", "norm.weight")
        },
    }  # fmt: skip
    for name, weight in ours.items():
        np.testing.assert_allclose(weight, expected[name], atol=1e-6)


def test_bfloat16_states_are_half_as_large_and_follow_within_their_rounding(problem):
    whole, _ = run_ours(problem, make_config())
    half, cell = run_ours(problem, make_config(optimizer_state="bfloat16"))

    assert {state.dtype for states in cell.slots.values() for state in states.values()} == {mindspore.bfloat16}
    for name, weight in half.items():
        moved = np.abs(whole[name] - problem[0][name]).max()
        np.testing.assert_allclose(weight, whole[name], atol=0.02 * moved)
        assert not np.array_equal(weight, whole[name])


def test_the_plain_adamw_equals_the_fused_one(problem):
    config = make_config()
    fused = run_ours(problem, config)[0]
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    parameters = {name: Parameter(Tensor(w.astype(np.float32)), name=name) for name, w in problem[0].items()}
    plain = AdamW(config, parameters)
    plain.is_fused = (False,) * len(parameters)

    for t, gradients in enumerate(problem[1], 1):
        tensors = mindspore.mutable(tuple(Tensor(gradients[name]) for name in parameters))
        plain(tensors, Tensor(np.float32(1)), Tensor(np.float32(0.01)), Tensor(np.int32(t)))

    for name, parameter in parameters.items():
        np.testing.assert_allclose(parameter.asnumpy(), fused[name], atol=2e-7)


def test_tables_and_the_head_take_adamw_in_a_muon_run():
    config = make_config(optimizer="muon")
    shapes = {"blocks.0.mlp.up.weight": (4, 4), "embedding.weight": (4, 4), "lm_head.weight": (4, 4), "b.bias": (4,)}

    assert [treat(name, shape, config).rule for name, shape in shapes.items()] == ["muon", "adamw", "adamw", "adamw"]
    stacked = make_config(groups=[{"pattern": "*experts*", "optimizer": "muon"}])
    with pytest.raises(ConfigError, match=r"experts.up.weight of shape \[2, 4, 4\] cannot take muon"):
        treat("experts.up.weight", (2, 4, 4), stacked)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": [{"pattern": "*", "learning_rate": 1}]}, r"train.groups\[0\].learning_rate: unknown key"),
        ({"groups": ["*bias"]}, r"train.groups\[0\]: expected keys and values, found '\*bias'"),
        ({"groups": [{"pattern": "*", "optimizer": "lion"}]}, "optimizer 'lion', expected one of adamw, sgd, muon"),
        ({"optimizer_state": "bfloat16", "beta2": 0.999}, "train.beta2: found 0.999, expected at most 0.99"),
        ({"momentum": 1.0}, "train.momentum: found 1.0"),
    ],
)
def test_impossible_groups_and_states_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_config(**changes)
