"""Tensor elements as raw words: what each safetensors dtype occupies, and casts between float formats.

Weights travel as unsigned words of their own width, so that a NaN payload, a negative zero or a subnormal is never
touched by arithmetic. numpy has no bfloat16; it needs none for that.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_weightconv.errors import ConfigError, RuleError

Words = NDArray[np.generic]

WORD_OF_DTYPE = {
    "F64": "<u8", "F32": "<u4", "F16": "<u2", "BF16": "<u2", "F8_E4M3": "|u1", "F8_E5M2": "|u1",
    "I64": "<u8", "I32": "<u4", "I16": "<u2", "I8": "|u1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
    "BOOL": "|u1",
}  # fmt: skip
"""safetensors' dtype names and the unsigned word each is kept in."""

CASTABLE = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
DTYPE_OF_NAME = {
    "fp32": "F32", "float32": "F32", "f32": "F32", "fp16": "F16", "float16": "F16", "f16": "F16",
    "bf16": "BF16", "bfloat16": "BF16", "fp64": "F64", "float64": "F64", "f64": "F64",
}  # fmt: skip
NAME_OF_DTYPE = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_BLOCK = 1 << 17  # elements; keeps the temporaries of a cast in the cache and below 4 MB a thread


@dataclass(frozen=True, kw_only=True)
class CastLoss:
    """What a cast of one tensor changed."""

    source_dtype: str
    """safetensors' name of the dtype before."""
    target_dtype: str
    """safetensors' name of the dtype after."""
    num_overflowed: int
    """Finite values that became an infinity."""
    num_underflowed: int
    """Values other than zero that became zero."""
    num_rounded: int
    """Values, those above included, that do not come back when cast to the old dtype again."""


def item_size(dtype: str) -> int:
    """Bytes of one element of a safetensors dtype."""
    return np.dtype(WORD_OF_DTYPE[dtype]).itemsize


def parse_dtype(name: str) -> str:
    """safetensors' name for a dtype written as `bf16`, `bfloat16`, `BF16` ...; raises ConfigError on others."""
    dtype = DTYPE_OF_NAME.get(name.lower())
    if dtype is None:
        raise ConfigError(f"dtype: found {name!r}, expected one of fp32, fp16, bf16, fp64")
    return dtype


def cast(words: Words, source: str, target: str) -> tuple[Words, CastLoss]:
    """Casts raw words between float dtypes, rounding to nearest, ties to even; NaNs stay NaNs.

    Args:
        words: raw words of any shape.
        source: their dtype, of `CASTABLE`.
        target: the dtype wanted, of `CASTABLE`.

    Returns:
        The new raw words, of the same shape and contiguous, and what was lost.

    Raises:
        RuleError: one of the dtypes is no float format that can be cast.
    """
    for dtype in (source, target):
        if dtype not in CASTABLE:
            raise RuleError(f"cannot cast {source} to {target}: {dtype} is none of {', '.join(CASTABLE)}")
    flat = np.ascontiguousarray(words).reshape(-1)
    result = np.empty(flat.shape, WORD_OF_DTYPE[target])
    overflowed = underflowed = rounded = 0
    for start in range(0, flat.size, _BLOCK):
        block = _decode(flat[start : start + _BLOCK], source)
        encoded = _encode(block, target)
        result[start : start + _BLOCK] = encoded
        back = _decode(encoded, target)
        overflowed += int(np.count_nonzero(np.isinf(back) & np.isfinite(block)))
        underflowed += int(np.count_nonzero((back == 0) & (block != 0)))
        rounded += int(np.count_nonzero((back != block) & ~(np.isnan(back) & np.isnan(block))))
    loss = CastLoss(
        source_dtype=source,
        target_dtype=target,
        num_overflowed=overflowed,
        num_underflowed=underflowed,
        num_rounded=rounded,
    )
    return result.reshape(words.shape), loss


def _decode(words: Words, dtype: str) -> NDArray[np.floating[Any]]:
    if dtype == "BF16":
        return (words.astype("<u4") << np.uint32(16)).view("<f4")
    return words.view(CASTABLE[dtype])


def _encode(values: NDArray[np.floating[Any]], dtype: str) -> Words:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype != "BF16":
            return values.astype(CASTABLE[dtype]).view(WORD_OF_DTYPE[dtype])
        single = np.ascontiguousarray(values.astype("<f4"))
    bits = single.view("<u4")
    upper = bits >> np.uint32(16)
    nan = (upper | np.uint32(0x0040)) & np.uint32(0xFFFF)  # the quiet bit keeps a NaN whose payload is cut off a NaN
    near = ((bits.astype("<u8") + np.uint64(0x7FFF) + (upper & np.uint32(1))) >> np.uint64(16)).astype("<u4")
    return np.where(np.isnan(single), nan, near).astype("<u2")
