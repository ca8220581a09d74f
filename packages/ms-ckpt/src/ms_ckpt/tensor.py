"""Tensors as they lie in a file: a dtype in safetensors' spelling and C-contiguous little-endian words.

numpy knows neither bfloat16 nor float8; such tensors are kept as raw words, so that no bit of them changes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ms_ckpt.errors import ValuesError

Array: TypeAlias = NDArray[Any]

# In the order in which safetensors lays tensors out: wide ones first, so that every tensor is aligned.
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
RAW_DTYPES = ("BF16", "F8_E4M3", "F8_E5M2")
_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items() if name not in RAW_DTYPES}
# The names under which ml_dtypes (and MindSpore through it) registers these types with numpy.
_EXTENSION_NAMES = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}


@dataclass(frozen=True, eq=False)
class RawTensor:
    """A tensor of a type that numpy lacks: `dtype` (BF16, F8_E4M3 or F8_E5M2) and its words (uint16 or uint8)."""

    dtype: str
    words: Array

    def __post_init__(self) -> None:
        """Raises ValuesError for another dtype or words of the wrong width."""
        if self.dtype not in RAW_DTYPES:
            raise ValuesError(f"raw tensor: expected a dtype of {', '.join(RAW_DTYPES)}, found {self.dtype!r}")
        if self.words.dtype != NUMPY_DTYPES[self.dtype]:
            raise ValuesError(
                f"raw tensor of {self.dtype}: expected words of {NUMPY_DTYPES[self.dtype].name}, "
                f"found {self.words.dtype.name}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, which is that of its words."""
        return self.words.shape

    def to_float32(self) -> NDArray[np.float32]:
        """The values, exactly."""
        if self.dtype == "BF16":
            return np.left_shift(self.words, 16, dtype=np.uint32).view(np.float32)
        return _float8_values(self.dtype)[self.words]


@cache
def _float8_values(dtype: str) -> NDArray[np.float32]:
    """The value of each of the 256 words (Micikevicius et al., FP8 Formats for Deep Learning, 2022, table 1)."""
    words = np.arange(256)
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    exponent = (words & 0x7F) >> mantissa_bits
    fraction = (words & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    values = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    if dtype == "F8_E4M3":  # no infinities, one NaN of each sign
        values[words & 0x7F == 0x7F] = np.nan
    else:
        values[exponent == 31] = np.where(fraction[exponent == 31] == 0, np.inf, np.nan)
    return np.where(words & 0x80, -values, values).astype(np.float32)


Tensor: TypeAlias = Array | RawTensor


@dataclass(frozen=True, eq=False)
class LazyTensor:
    """A tensor that is read only when it is written, so that files larger than memory can be rewritten."""

    dtype: str
    """In safetensors' spelling."""
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


Source: TypeAlias = Tensor | LazyTensor


def spell_dtype(dtype: DTypeLike | str, name: str = "tensor") -> str:
    """The safetensors spelling of a numpy dtype (or of a spelling itself); raises ValuesError, naming `name`."""
    if isinstance(dtype, str) and dtype in NUMPY_DTYPES:
        return dtype
    if isinstance(dtype, str) and dtype in _EXTENSION_NAMES:
        return _EXTENSION_NAMES[dtype]
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise ValuesError(f"{name}: unknown dtype {dtype!r}; known: {', '.join(NUMPY_DTYPES)}") from error
    if found.name in _EXTENSION_NAMES:
        return _EXTENSION_NAMES[found.name]
    spelled = _NAMES.get(found.newbyteorder("<"))
    if spelled is None:
        raise ValuesError(f"{name}: dtype {found} cannot be stored; known: {', '.join(NUMPY_DTYPES)}")
    return spelled


def words_of(name: str, tensor: Tensor) -> tuple[str, Array]:
    """The dtype and the words of a tensor where they lie, in whatever order; no copy.

    Raises ValuesError, naming the tensor, for anything but a numpy array or RawTensor of a known dtype.
    """
    if not isinstance(name, str) or name in ("", "__metadata__"):
        raise ValuesError(f"tensor name {name!r}: expected a string, neither empty nor __metadata__")
    if isinstance(tensor, RawTensor):
        return tensor.dtype, tensor.words
    if not isinstance(tensor, np.ndarray):
        raise ValuesError(f"{name}: expected a numpy array or RawTensor, found {type(tensor).__name__}")
    dtype = spell_dtype(tensor.dtype, name)
    return dtype, tensor.view(NUMPY_DTYPES[dtype]) if dtype in RAW_DTYPES else tensor


def form_of(name: str, source: Source) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape of what is to be stored, without reading it; raises ValuesError as `words_of` does."""
    if isinstance(source, LazyTensor):
        return spell_dtype(source.dtype, name), tuple(source.shape)
    dtype, words = words_of(name, source)
    return dtype, words.shape


def stored_form(name: str, source: Source) -> tuple[str, Array]:
    """The dtype and the C-contiguous little-endian words of a tensor; copies only what needs it.

    Raises ValuesError, naming the tensor, for anything but a numpy array or RawTensor of a known dtype, and for a lazy
    tensor that is not what it said.
    """
    tensor = source.read() if isinstance(source, LazyTensor) else source
    dtype, words = words_of(name, tensor)
    if (dtype, words.shape) != form_of(name, source):
        raise ValuesError(f"{name}: read as {dtype} {list(words.shape)}, announced as {form_of(name, source)}")
    return dtype, np.asarray(words, dtype=NUMPY_DTYPES[dtype], order="C")


def returned_form(dtype: str, words: Array) -> Tensor:
    """What a reader hands out: the array itself, or a RawTensor where numpy lacks the type."""
    return RawTensor(dtype, words) if dtype in RAW_DTYPES else words


def num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return NUMPY_DTYPES[dtype].itemsize * math.prod(shape)


def as_bytes(words: Array) -> memoryview:
    """The memory of a C-contiguous array as bytes, without a copy; writable if the array is."""
    return words.reshape(-1).view(np.uint8).data
