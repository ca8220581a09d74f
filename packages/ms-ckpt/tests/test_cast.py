import numpy as np
import pytest
from ms_ckpt import RawTensor, ValuesError
from ms_ckpt.cast import cast, to_bfloat16

BF16_OF = {1.0: 0x3F80, 1.5: 0x3FC0, -0.0: 0x8000, np.inf: 0x7F80, -np.inf: 0xFF80}


def bits(values):
    return to_bfloat16(np.asarray(values)).words.tolist()


def test_bfloat16_agrees_with_ml_dtypes_on_every_kind_of_float32():
    bfloat16 = pytest.importorskip("mindspore.common.np_dtype").bfloat16
    words = np.random.default_rng(3).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    edges = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0x17FFF, 0x18000, 0x7F7FFFFF, 0x80000001], np.uint32)
    values = np.concatenate([words, edges]).view(np.float32)
    values = values[~np.isnan(values)]

    with np.errstate(over="ignore"):
        assert (to_bfloat16(values).words == values.astype(bfloat16).view(np.uint16)).all()


def test_exact_values_and_infinities_keep_their_words():
    assert bits(np.array(list(BF16_OF), np.float32)) == list(BF16_OF.values())


def test_nan_stays_nan_even_where_rounding_would_carry_it_to_infinity():
    words = np.array([0x7F800001, 0x7FFFFFFF, 0xFFC00000], np.uint32)

    assert np.isnan(to_bfloat16(words.view(np.float32)).to_float32()).all()


def test_float64_is_rounded_once_and_not_twice():
    just_above_the_tie = 1 + 2.0**-8 + 2.0**-40  # through float32 it would become the tie and round down to even
    just_below_the_tie = 1 + 3 * 2.0**-8 - 2.0**-40

    assert bits([just_above_the_tie, just_below_the_tie, 1 + 2.0**-8]) == [0x3F81, 0x3F81, 0x3F80]
    assert bits(np.float32([just_above_the_tie])) == [0x3F80]  # what rounding twice would give


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_floats_become_any_floats_and_non_finite_values_stay(dtype):
    source = np.array([1.5, -2.0, np.inf, -np.inf, np.nan], np.float32)

    result = cast(source, dtype, "w")

    wide = result.to_float32() if isinstance(result, RawTensor) else result.astype(np.float32)
    np.testing.assert_array_equal(wide, source)


@pytest.mark.parametrize(
    ("source", "dtype", "largest"),
    [
        (np.array([1.0, 65520.0], np.float32), "F16", "65520"),
        (np.array([1e39]), "F32", "1e\\+39"),
        (np.array([3.4e38], np.float32), "BF16", "3.4e\\+38"),
        (RawTensor("BF16", np.array([0x7F7F], np.uint16)), "F16", "3.38953e\\+38"),
    ],
)
def test_finite_value_that_would_become_infinite_is_refused(source, dtype, largest):
    with pytest.raises(ValuesError, match=rf"w: {largest} does not fit {dtype}"):
        cast(source, dtype, "w")


@pytest.mark.parametrize(
    ("value", "source", "dtype"), [(-1, "i4", "U8"), (256, "i8", "U8"), (2**63, "u8", "I64"), (-129, "i2", "I8")]
)
def test_whole_number_that_does_not_fit_is_refused(value, source, dtype):
    with pytest.raises(ValuesError, match=f"does not fit {dtype}"):
        cast(np.array([0, value], source), dtype, "n")


def test_whole_numbers_that_fit_are_converted():
    assert cast(np.array([0, 255], np.int64), "U8", "n").dtype == np.uint8


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        (np.array([1.0]), "I32"),
        (np.array([1]), "F32"),
        (np.array([True]), "I8"),
        (RawTensor("F8_E4M3", np.zeros(1, np.uint8)), "I8"),
        (np.array([1.0]), "F8_E4M3"),
    ],
)
def test_kinds_are_never_mixed(source, dtype):
    with pytest.raises(ValuesError, match=r"w: .*cannot become"):
        cast(source, dtype, "w")


def test_scalars_and_empty_tensors_keep_their_shape():
    assert cast(np.array(1.5), "BF16", "s").shape == ()
    assert cast(np.zeros((0, 3), np.float32), "F16", "e").shape == (0, 3)


@pytest.mark.parametrize(("dtype", "name"), [("F8_E4M3", "float8_e4m3fn"), ("F8_E5M2", "float8_e5m2")])
def test_float8_agrees_with_ml_dtypes_on_every_word(dtype, name):
    kind = getattr(pytest.importorskip("mindspore.common.np_dtype"), name, None)
    words = np.arange(256, dtype=np.uint8)

    values = RawTensor(dtype, words).to_float32()

    if kind is not None:
        np.testing.assert_array_equal(values, words.view(kind).astype(np.float32))
    known = {"F8_E4M3": {0x38: 1, 0x7E: 448, 0x01: 2**-9, 0xFE: -448}, "F8_E5M2": {0x3C: 1, 0x7B: 57344, 0xFC: -np.inf}}
    assert {word: values[word] for word in known[dtype]} == known[dtype]
    assert np.isnan(values[0x7F])
    np.testing.assert_array_equal(cast(RawTensor(dtype, words), "F32", "w"), values)
