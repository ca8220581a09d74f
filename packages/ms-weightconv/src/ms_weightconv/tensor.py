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
_TILE_ROWS, _TILE_COLUMNS = 256, 32  # the fastest of seven sizes tried on matrices of 1024 to 4096


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
    """The bytes of an array in C order, in blocks of some megabytes; a transposed view is never copied whole.

    A block is overwritten by the next one.
    """
    if words.flags.c_contiguous or words.ndim < 2:
        flat = np.ascontiguousarray(words).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, BLOCK_BYTES):
            yield flat[start : start + BLOCK_BYTES].data
        return
    rows = min(words.shape[0], max(16, BLOCK_BYTES // max(1, words[:1].nbytes)))
    buffer = np.empty((rows, *words.shape[1:]), words.dtype)  # one for all: fresh pages cost as much as the copy
    for start in range(0, words.shape[0], rows):
        part = words[start : start + rows]
        _gather(part, buffer[: len(part)])
        yield buffer[: len(part)].reshape(-1).view(np.uint8).data


def _gather(words: Words, into: Words) -> None:
    """Copies; a transposed matrix tile by tile, which is twice as fast as numpy's walk through it."""
    if words.strides[-2] != words.itemsize or words.strides[-1] == words.itemsize:
        into[...] = words
        return
    for row in range(0, words.shape[-2], _TILE_ROWS):
        for column in range(0, words.shape[-1], _TILE_COLUMNS):
            place = (..., slice(row, row + _TILE_ROWS), slice(column, column + _TILE_COLUMNS))
            into[place] = words[place]


def checksum(tensor: Tensor) -> int:
    """crc32 of a tensor's bytes in C order."""
    crc = 0
    for block in blocks(tensor.read()):
        crc = zlib.crc32(block, crc)
    return crc
