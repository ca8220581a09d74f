import numpy as np
import pytest
from ms_ckpt import CheckpointStore, RawTensor
from ms_ckpt.comparison import compare
from ms_ckpt.statistics import describe


@pytest.mark.parametrize("size", [5, (1 << 20) + 7])
def test_figures_are_those_of_the_finite_elements_whatever_the_size(size):
    values = np.random.default_rng(1).normal(1e4, 1e-2, size)  # a naive sum of squares would lose the spread
    values[:3] = [np.inf, -np.inf, np.nan]

    found = describe(values)

    assert (found.num_non_finite, found.minimum, found.maximum) == (3, values[3:].min(), values[3:].max())
    assert found.mean == pytest.approx(values[3:].mean(), rel=1e-12)
    assert found.std == pytest.approx(values[3:].std(), rel=1e-6)


def test_every_type_has_figures():
    assert describe(np.array([True, False, True])).maximum == 1
    assert describe(np.array([2**62, 0])).maximum == 2**62
    assert describe(RawTensor("BF16", np.array([0x3FC0, 0x7F80], np.uint16))).num_non_finite == 1
    assert describe(RawTensor("F8_E5M2", np.array([0x3C, 0x7C, 0x7F], np.uint8))).num_non_finite == 2


@pytest.mark.parametrize("values", [np.empty(0), np.array([np.nan])])
def test_without_finite_elements_there_are_no_figures(values):
    assert np.isnan(describe(values).mean)
    assert describe(values).num_non_finite == values.size


def differences(tmp_path, a, b):
    for name, tensors in (("a", a), ("b", b)):
        CheckpointStore(tmp_path / name).save(1, tensors, {})
    with CheckpointStore(tmp_path / "a").open(1) as first, CheckpointStore(tmp_path / "b").open(1) as second:
        return {found.name: found for found in compare(first, second)}


def test_largest_difference_is_found_wherever_it_is(tmp_path):
    a = np.zeros((1 << 20) + 9, np.float32)
    b = a.copy()
    b[7], b[-1] = 1e-3, -0.25

    found = differences(tmp_path, {"w": a}, {"w": b})

    assert found["w"].max_difference == 0.25
    assert found["w"].text == "2 of 1048585 elements differ, by at most 0.25"


def test_layers_are_in_order_and_the_first_that_differs_comes_first(tmp_path):
    a = {f"model.blocks.{layer}.up.weight": np.zeros(3) for layer in range(12)}
    b = {
        name: array + (10 if name in ("model.blocks.2.up.weight", "model.blocks.10.up.weight") else 0)
        for name, array in a.items()
    }

    assert list(differences(tmp_path, a, b)) == ["model.blocks.2.up.weight", "model.blocks.10.up.weight"]


def test_nan_zero_signs_and_raw_words_are_compared_by_their_bits(tmp_path):
    def tensors(number, zero, word, flag):
        raw = RawTensor("F8_E4M3", np.array([word], np.uint8))
        return {"nan": np.array([number, 1.0]), "zero": np.array([zero]), "raw": raw, "flag": np.array([flag])}

    a, b = tensors(np.nan, 0.0, 0x38, True), tensors(2.0, -0.0, 0x40, False)

    found = differences(tmp_path, a, b)

    assert np.isnan(found["nan"].max_difference)
    assert (found["zero"].max_difference, found["raw"].max_difference, found["flag"].max_difference) == (0, 1, 1)
