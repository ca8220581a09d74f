"""Tests of the learning rate: exact at every edge, and the same inside the graph."""

import math

import mindspore
import numpy as np
import pytest
from mindspore import Tensor
from ms_trainloop.config import SCHEDULES, TrainConfig
from ms_trainloop.errors import ConfigError
from ms_trainloop.rate import LearningRate
from ms_trainloop.schedules import learning_rate

PEAK, LOWEST = 3e-4, 3e-5
NEEDED = {"wsd": {"decay_steps": 20}, "cosine_restarts": {"restart_steps": 13, "restart_factor": 2}}
SHAPES = [(schedule, NEEDED.get(schedule, {})) for schedule in SCHEDULES]
SHAPES += [("wsd", {"decay_steps": 90, "decay_shape": "sqrt"}), ("cosine_restarts", {"restart_steps": 30})]


def make(schedule, steps=101, warmup=11, **options):
    return TrainConfig(
        steps=steps,
        global_batch_size=1,
        micro_batch_size=1,
        learning_rate=PEAK,
        min_learning_rate=LOWEST,
        warmup_steps=warmup,
        schedule=schedule,
        **options,
    )


@pytest.mark.parametrize(("schedule", "options"), [s for s in SHAPES if s[0] in ("cosine", "linear", "polynomial")])
def test_edges_are_exact(schedule, options):
    config = make(schedule, **options)

    rates = [learning_rate(config, step) for step in (0, 9, 10, 100, 101, 10_000)]

    assert rates == [PEAK * (1 / 11), PEAK * (10 / 11), PEAK, LOWEST, LOWEST, LOWEST]
    middle = 0.25 if schedule == "polynomial" else 0.5
    assert learning_rate(config, 55) == pytest.approx(LOWEST + (PEAK - LOWEST) * middle, rel=1e-12)


def test_constant_stays_at_the_peak():
    assert [learning_rate(make("constant"), step) for step in (10, 11, 100, 1000)] == [PEAK] * 4


def test_inverse_square_root_halves_when_the_step_quadruples_and_stops_at_the_minimum():
    config = make("inverse_sqrt")

    assert [learning_rate(config, step) for step in (10, 43)] == [PEAK, PEAK / 2]
    assert learning_rate(config, 10**6) == LOWEST


@pytest.mark.parametrize(("shape", "middle"), [("linear", 0.5), ("sqrt", 1 - math.sqrt(0.5))])
def test_wsd_is_stable_up_to_the_decay_and_ends_at_the_minimum(shape, middle):
    config = make("wsd", decay_steps=20, decay_shape=shape)

    assert [learning_rate(config, step) for step in (10, 11, 79, 80)] == [PEAK] * 4
    assert learning_rate(config, 81) < PEAK
    assert learning_rate(config, 90) == pytest.approx(LOWEST + (PEAK - LOWEST) * middle, rel=1e-12)
    assert [learning_rate(config, step) for step in (100, 101, 9999)] == [LOWEST] * 3


def test_each_restart_begins_at_the_peak_and_ends_at_the_minimum():
    config = make("cosine_restarts", restart_steps=13, restart_factor=2)

    firsts, lasts = (10, 23, 49), (22, 48)

    assert [learning_rate(config, step) for step in firsts] == [PEAK] * 3
    assert [learning_rate(config, step) for step in lasts] == [LOWEST] * 2
    assert learning_rate(config, 16) == pytest.approx((PEAK + LOWEST) / 2)
    assert learning_rate(config, 101) == LOWEST


@pytest.mark.parametrize(("schedule", "options"), SHAPES)
def test_without_warmup_the_first_step_has_the_peak(schedule, options):
    assert learning_rate(make(schedule, warmup=0, **options), 0) == PEAK


def test_a_warmup_that_fills_the_run_ends_at_the_peak():
    assert learning_rate(make("cosine", steps=11), 10) == PEAK
    assert learning_rate(make("cosine", steps=11), 11) == LOWEST


def test_a_run_of_one_step_uses_the_peak():
    assert learning_rate(make("cosine", steps=1, warmup=0), 0) == PEAK


@pytest.mark.parametrize(
    ("schedule", "options", "message"),
    [
        ("wsd", {}, r"train.decay_steps: found 0, expected 1 \.\.\. 90"),
        ("wsd", {"decay_steps": 91}, "train.decay_steps: found 91"),
        ("cosine_restarts", {}, "train.restart_steps: found 0, expected 2 or more"),
        ("cosine", {"warmup": 102}, "train.warmup_steps: found 102, expected at most train.steps"),
    ],
)
def test_shapes_that_do_not_fit_the_run_are_refused(schedule, options, message):
    with pytest.raises(ConfigError, match=message):
        make(schedule, **options)


@pytest.mark.parametrize(("schedule", "options"), SHAPES)
def test_the_graph_gives_the_same_rates_and_the_same_edges(schedule, options):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    config = make(schedule, **options)
    cell = LearningRate(config)

    found = np.array([cell(Tensor(np.int32(step))).asnumpy() for step in range(110)])

    expected = np.array([learning_rate(config, step) for step in range(110)])
    # float32, and the CPU's cosine and power err by some 1e-7
    np.testing.assert_allclose(found, expected, atol=1e-6 * PEAK)
    edges = {10, 100, 109} - ({100} if schedule == "cosine_restarts" else set())
    for edge in edges - ({100, 109} if schedule == "inverse_sqrt" else set()):
        assert found[edge] == np.float32(expected[edge])
    assert not np.allclose(found[:-1], expected[1:], atol=3e-7 * PEAK) or schedule == "constant"
