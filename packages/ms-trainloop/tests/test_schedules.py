"""Tests of the learning rate: exact at every edge, and the same inside the graph."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor
from ms_trainloop.config import TrainConfig
from ms_trainloop.rate import LearningRate
from ms_trainloop.schedules import learning_rate

PEAK, LOWEST = 3e-4, 3e-5


def make(schedule, steps=101, warmup=11):
    return TrainConfig(
        steps=steps,
        global_batch_size=1,
        micro_batch_size=1,
        learning_rate=PEAK,
        min_learning_rate=LOWEST,
        warmup_steps=warmup,
        schedule=schedule,
    )


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_edges_are_exact(schedule):
    config = make(schedule)

    rates = [learning_rate(config, step) for step in (0, 9, 10, 100, 101, 10_000)]

    assert rates == [PEAK * (1 / 11), PEAK * (10 / 11), PEAK, LOWEST, LOWEST, LOWEST]
    assert learning_rate(config, 55) == pytest.approx((PEAK + LOWEST) / 2, rel=1e-12)


def test_constant_stays_at_the_peak():
    assert [learning_rate(make("constant"), step) for step in (10, 11, 100, 1000)] == [PEAK] * 4


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_without_warmup_the_first_step_has_the_peak(schedule):
    assert learning_rate(make(schedule, warmup=0), 0) == PEAK


def test_a_warmup_that_fills_the_run_ends_at_the_peak():
    assert learning_rate(make("cosine", steps=11), 10) == PEAK
    assert learning_rate(make("cosine", steps=11), 11) == LOWEST


def test_a_run_of_one_step_uses_the_peak():
    assert learning_rate(make("cosine", steps=1, warmup=0), 0) == PEAK


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_graph_gives_the_same_rates_and_the_same_edges(schedule):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    config = make(schedule)
    cell = LearningRate(config)

    found = np.array([cell(Tensor(np.int32(step))).asnumpy() for step in range(110)])

    expected = np.array([learning_rate(config, step) for step in range(110)])
    # float32, and the CPU's cosine errs by 2e-7
    np.testing.assert_allclose(found, expected, atol=3e-7 * PEAK)
    for edge in (10, 100, 109):
        assert found[edge] == np.float32(expected[edge])
    assert not np.allclose(found[:-1], expected[1:], atol=3e-7 * PEAK) or schedule == "constant"
