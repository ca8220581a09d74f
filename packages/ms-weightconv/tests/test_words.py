import numpy as np
import pytest
from ms_weightconv.errors import ConfigError, RuleError
from ms_weightconv.words import cast, parse_dtype


def test_bfloat16_to_float32_and_back_keeps_all_65536_words_except_for_signalling_nans():
    words = np.arange(1 << 16, dtype="<u2")

    wide, loss = cast(words, "BF16", "F32")
    back, _ = cast(wide, "F32", "BF16")

    is_nan = np.isnan(wide.view("<f4"))
    assert loss.num_rounded == 0
    assert np.array_equal(back[~is_nan], words[~is_nan])
    assert np.array_equal(back[is_nan], words[is_nan] | 0x40)


def test_float32_rounds_to_the_nearest_bfloat16_and_ties_to_even():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x00000001, 0x80000000], "<u4")

    words, loss = cast(bits, "F32", "BF16")

    assert words.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0x0000, 0x8000]
    assert (loss.num_overflowed, loss.num_underflowed, loss.num_rounded) == (1, 1, 6)


def test_a_nan_whose_payload_is_cut_off_stays_a_nan():
    words, loss = cast(np.array([0x7F800001, 0xFFFFFFFF], "<u4"), "F32", "BF16")

    assert words.tolist() == [0x7FC0, 0xFFFF]
    assert loss.num_overflowed == loss.num_rounded == 0


def test_float16_casts_are_numpys_and_count_what_is_lost():
    values = np.random.default_rng(1).normal(0, 3e4, 5000).astype("<f4")

    words, loss = cast(values.view("<u4").reshape(50, 100), "F32", "F16")

    with np.errstate(over="ignore"):
        expected = values.astype("<f2")
    assert np.array_equal(words, expected.view("<u2").reshape(50, 100))
    assert loss.num_overflowed == np.count_nonzero(np.isinf(expected)) > 0


def test_integers_and_float8_are_not_cast():
    with pytest.raises(RuleError, match="F8_E4M3 is none of"):
        cast(np.zeros(2, "u1"), "F8_E4M3", "F32")


@pytest.mark.parametrize(
    ("name", "dtype"), [("bf16", "BF16"), ("bfloat16", "BF16"), ("Float32", "F32"), ("fp16", "F16")]
)
def test_dtypes_are_named_as_people_name_them(name, dtype):
    assert parse_dtype(name) == dtype


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ConfigError, match="found 'int8', expected one of fp32"):
        parse_dtype("int8")
