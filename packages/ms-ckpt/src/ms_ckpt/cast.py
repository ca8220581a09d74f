"""Changing a tensor's dtype on load, only where no value is lost for want of range."""

import numpy as np

from ms_ckpt.errors import ValuesError
from ms_ckpt.tensor import NUMPY_DTYPES, Array, RawTensor, Tensor

FLOATS = ("F64", "F32", "F16", "BF16")


def cast(tensor: Tensor, dtype: str, name: str) -> Tensor:
    """The tensor as `dtype`, rounded to the nearest value (ties to even).

    Raises ValuesError, naming the tensor, if a finite value would become infinite, an integer would not fit, or the two
    kinds are neither both floating (to F64 F32 F16 BF16, from FP8 too) nor both whole numbers.
    """
    source = tensor.to_float32() if isinstance(tensor, RawTensor) else tensor
    if dtype in FLOATS and source.dtype.kind == "f":
        return _to_float(source, dtype, name)
    target = NUMPY_DTYPES[dtype]
    if target.kind in "iu" and source.dtype.kind in "iu":
        result = source.astype(target)
        if not np.array_equal(result, source):
            raise ValuesError(f"{name}: a value of {source.min()} ... {source.max()} does not fit {dtype}")
        return result
    raise ValuesError(
        f"{name}: {source.dtype} cannot become {dtype}; floats become floats, whole numbers whole numbers"
    )


def _to_float(source: Array, dtype: str, name: str) -> Tensor:
    with np.errstate(over="ignore", invalid="ignore"):
        result = to_bfloat16(source) if dtype == "BF16" else source.astype(NUMPY_DTYPES[dtype])
        back = result.to_float32() if isinstance(result, RawTensor) else result
    if np.any(np.isfinite(source) & ~np.isfinite(back)):
        largest = float(np.max(np.abs(source[np.isfinite(source)])))
        raise ValuesError(f"{name}: {largest:.6g} does not fit {dtype}")
    return result


def to_bfloat16(values: Array) -> RawTensor:
    """Floats rounded to bfloat16, ties to even; a NaN stays one."""
    wide = values.astype(np.float32)
    if values.dtype == np.float64:  # rounding twice could land on the wrong side: make the first rounding odd
        wide = _round_to_odd(values, wide)
    words = wide.view(np.uint32)
    rounded = ((words + (0x7FFF + ((words >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
    is_nan = np.isnan(wide)
    rounded = np.where(is_nan, (words >> 16).astype(np.uint16) | np.uint16(0x40), rounded)
    return RawTensor("BF16", np.ascontiguousarray(rounded, np.uint16).reshape(values.shape))


def _round_to_odd(values: Array, wide: Array) -> Array:
    exact = wide.astype(np.float64)
    is_inexact = np.isfinite(values) & (exact != values) & np.isfinite(wide)
    words = wide.view(np.uint32)
    is_beyond = np.abs(exact) > np.abs(values)  # towards zero first, then the last bit set
    towards = np.where(is_inexact & is_beyond, words - 1, words)
    return np.where(is_inexact, towards | 1, words).astype(np.uint32).view(np.float32).reshape(values.shape)
