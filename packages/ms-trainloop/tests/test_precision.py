"""Tests of mixed precision: what is half and what is not, the loss scale, and exact resume in float16."""

import mindspore
import numpy as np
import pytest
from mindspore import Tensor
from ms_trainloop.errors import ConfigError, DivergenceError, TrainLoopError
from ms_trainloop.loop import train
from ms_trainloop.step import TrainStep

HALF, WHOLE = mindspore.float16, mindspore.float32


def make_half_step(lab, level="O2", **changes):
    model = lab.LayeredModel()
    options = {"precision": "float16", "precision_level": level, "loss_scale": 1024.0, **changes}
    return TrainStep(model, lab.make_config(**options), parameters=model.named)


def run_steps(lab, step, count=4):
    batches = lab.batches_of(lab.make_rows(), 4)(0)
    return [step.run(batch) for _, batch in zip(range(count), batches, strict=False)]


@pytest.fixture(scope="module")
def whole(lab):
    model = lab.LayeredModel()
    step = TrainStep(model, lab.make_config(), parameters=model.named)
    return run_steps(lab, step), lab.weights_of(step)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_float16_follows_float32_within_its_rounding(lab, whole, level):
    step = make_half_step(lab, level)

    results = run_steps(lab, step)

    losses = np.array([[each.loss_sum / each.tokens, each.grad_norm] for each in results])
    expected = np.array([[each.loss_sum / each.tokens, each.grad_norm] for each in whole[0]])
    np.testing.assert_allclose(losses, expected, rtol=4e-3)
    assert np.abs(losses - expected).max() > 1e-6, "nothing was computed in half precision"
    for name, weight in lab.weights_of(step).items():
        np.testing.assert_allclose(weight, whole[1][name], atol=0.02, err_msg=name)


@pytest.mark.parametrize(
    ("level", "half_weights", "kinds_saved"),
    [
        ("O1", set(), {"float32"}),
        ("O2", {"embedding.weight", "up.weight", "lm_head.weight"}, {"float32"}),
        ("O3", {"embedding.weight", "up.weight", "lm_head.weight"}, {"float32", "float16"}),
    ],
)
def test_each_level_halves_what_it_says_and_keeps_the_norms(lab, level, half_weights, kinds_saved):
    step = make_half_step(lab, level)

    types = {name: parameter.dtype for name, parameter in step.model.named.items()}

    assert {name for name, kind in types.items() if kind == HALF} == half_weights
    assert {str(value.dtype) for value in lab.weights_of(step).values()} == kinds_saved
    assert all(state.dtype == WHOLE for states in step.optimizer.slots.values() for state in states.values())


def test_patterns_keep_more_in_float32(lab):
    step = make_half_step(lab, keep_float32=["*norm*", "embedding*"])

    assert step.model.named["embedding.weight"].dtype == WHOLE
    assert sorted(step.state.copies) == ["lm_head.weight", "up.weight"]


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_norms_of_large_half_activations_are_computed_in_float32(lab, level):
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    row = Tensor(np.array([[60000, -60000, 300, 1, 0, -1, 2, 30000]], np.float16))
    step = make_half_step(lab, level)

    normed = step.model.norm(row)

    exact = row.asnumpy().astype(np.float64)
    exact = (exact - exact.mean()) / exact.std()
    assert normed.dtype == HALF
    np.testing.assert_allclose(normed.asnumpy(), exact, atol=2e-3)


def test_an_overflow_skips_the_step_and_halves_the_scale_down_to_the_floor(lab):
    step = make_half_step(lab, loss_scale=2.0**24, loss_scale_floor=2.0**20)
    before = lab.weights_of(step)

    results = run_steps(lab, step, 6)

    assert [result.loss_scale for result in results] == [2.0**k for k in (24, 23, 22, 21, 20, 20)]
    assert not any(result.is_applied for result in results)
    assert all(np.isfinite(result.loss_sum) for result in results)
    for name, value in lab.weights_of(step).items():
        np.testing.assert_array_equal(value, before[name])


def test_a_scale_that_overflows_at_its_floor_stops_the_run(lab, tmp_path):
    step = make_half_step(lab, loss_scale=2.0**24, loss_scale_floor=2.0**22, max_skipped_steps=5)

    with pytest.raises(DivergenceError, match=r"step 5 skipped: .*loss scale 4\.1943e\+06.* 5 in a row"):
        train(step, lab.batches_of(lab.make_rows(), 4), run_dir=tmp_path, progress=None)


def test_a_dynamic_scale_doubles_after_its_window_and_a_static_one_stays(lab):
    growing = run_steps(lab, make_half_step(lab, loss_scale_window=2), 5)
    fixed = run_steps(lab, make_half_step(lab, loss_scale_window=0), 5)

    assert [result.loss_scale for result in growing] == [1024, 1024, 2048, 2048, 4096]
    assert [result.loss_scale for result in fixed] == [1024] * 5
    assert all(result.is_applied for result in growing + fixed)


@pytest.mark.parametrize("level", ["O2", "O3"])  # O1 has the same state as float32
def test_float16_with_a_moving_scale_resumes_to_the_bit(lab, tmp_path, level):
    options = {"level": level, "loss_scale": 2.0**20, "loss_scale_window": 3, "steps": 8, "save_every": 1}
    checkpointer, results = lab.MemoryCheckpointer(), {}
    source = lab.batches_of(lab.make_rows(), 4)
    train(
        make_half_step(lab, **options),
        source,
        run_dir=tmp_path,
        checkpointer=checkpointer,
        progress=None,
        on_step=results.__setitem__,
    )
    assert len({result.loss_scale for result in results.values()}) > 2, "the scale must move for this to mean something"
    again, step = {}, make_half_step(lab, **options)

    resumed = lab.MemoryCheckpointer(checkpointer.states, at=4)
    train(step, source, run_dir=tmp_path, checkpointer=resumed, progress=None, on_step=again.__setitem__)

    assert again == {n: result for n, result in results.items() if n > 4}
    for name, tensor in checkpointer.states[8][0].items():
        assert resumed.states[8][0][name].tobytes() == tensor.tobytes(), name
    step.state.require_equal_copies()


def test_weights_loaded_behind_the_masters_are_refused(lab):
    step = make_half_step(lab)
    step.model.head.weight.set_data(Tensor(np.ones((lab.VOCAB, lab.HIDDEN), np.float16)))

    with pytest.raises(TrainLoopError, match=r"lm_head.weight: .* load weights before making the TrainStep"):
        run_steps(lab, step, 1)


def test_o1_needs_cells_with_matrices(lab):
    model = lab.LinearModel()

    with pytest.raises(ConfigError, match=r"train.precision_level: O1 found no cell"):
        TrainStep(model, lab.make_config(precision="float16", precision_level="O1"))
