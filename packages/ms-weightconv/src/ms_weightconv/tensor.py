"""Tensors that are read when asked for, the mapped files behind them, and their bytes in blocks."""

import mmap
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from ms_weightconv.errors import TargetError
from ms_weightconv.words import WORD_OF_DTYPE, Words, item_size

_MAX_RESIDENT_BYTES = 1 << 24  # of a mapped file, beyond the tensor being read
BLOCK_BYTES = 1 << 22  # of one write; larger blocks gained nothing on a page cache


@dataclass(frozen=True)
class Tensor:
    """A tensor that is read when asked for."""

    dtype: str
    """safetensors' name."""
    shape: tuple[int, ...]
    """Its extents."""
    read: Callable[[], Words]
    """Returns the raw words; a view of the file where that is possible."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all elements."""
        return prod(self.shape) * item_size(self.dtype)


class MappedFile:
    """A mapped file that gives back the pages it no longer needs: without that, resident memory grows to its size."""

    def __init__(self, path: Path) -> None:
        """Maps a file that is not empty."""
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._touched = 0

    def tensor(self, dtype: str, shape: tuple[int, ...], offset: int) -> Tensor:
        """A tensor whose words lie at an offset, in C order; the caller has checked that they are in the file."""
        return Tensor(dtype, shape, partial(self._read, dtype, shape, offset))

    def words(self, dtype: str, count: int, offset: int) -> Words:
        """A number of words at an offset, as a view of the file."""
        if not count:
            return np.empty(0, WORD_OF_DTYPE[dtype])
        if self._touched > _MAX_RESIDENT_BYTES:
            self.data.madvise(mmap.MADV_DONTNEED)  # views stay valid: they are read from the file again
            self._touched = 0
        self._touched += count * item_size(dtype)
        return np.frombuffer(self.data, WORD_OF_DTYPE[dtype], count, offset)

    def _read(self, dtype: str, shape: tuple[int, ...], offset: int) -> Words:
        return self.words(dtype, prod(shape), offset).reshape(shape)


def check_words(name: str, words: Words, expected: Tensor) -> None:
    """Raises TargetError if a tensor did not yield the shape or dtype that it announced."""
    if words.shape != expected.shape or words.dtype != np.dtype(WORD_OF_DTYPE[expected.dtype]):
        raise TargetError(f"{name}: expected {expected.dtype} {expected.shape}, got {words.dtype} {words.shape}")


def blocks(words: Words) -> Iterator[memoryview]:
    """The bytes of an array in C order, in blocks of some megabytes; a transposed view is never copied whole."""
    if words.flags.c_contiguous or words.ndim < 2:
        flat = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, BLOCK_BYTES):
            yield flat[start : start + BLOCK_BYTES].data
        return
    rows = max(16, BLOCK_BYTES // max(1, words[:1].nbytes))
    for start in range(0, words.shape[0], rows):
        part = np.ascontiguousarray(words[start : start + rows])
        yield part.reshape(-1).view(np.uint8).data


def checksum(tensor: Tensor) -> int:
    """crc32 of a tensor's bytes in C order."""
    crc = 0
    for block in blocks(tensor.read()):
        crc = zlib.crc32(block, crc)
    return crc
