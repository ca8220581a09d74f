"""Which byte ranges of which chunks a read needs, and carrying them out on several threads.

A range goes straight into the target's memory where it is one run there; otherwise through a buffer of at most a strip.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_ckpt.index import Chunk, StoredTensor
from ms_ckpt.shard import Shard
from ms_ckpt.tensor import NUMPY_DTYPES, Array, as_bytes, num_bytes

_STRIP = 8 << 20  # bytes a task; small enough to balance two threads, large enough to hide the cost of a task
_MAX_THREADS = 4  # checksums take a core each; more than four readers gained nothing
_SHORT_RUN = 64 << 10  # runs shorter than this are read together with what lies between them


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """One task: bytes `start` to `stop` of a chunk, into memory, into a block of an array, or nowhere (verified only).

    `start` and `stop` are ranges that the shard can verify by themselves.
    """

    shard: Shard
    chunk: Chunk
    start: int
    stop: int
    into: memoryview | None = None
    block: Array | None = None
    """Where a part of the bytes goes, when they cannot be read in place."""
    first: int = 0
    """Byte of the chunk at which the array that `cut` cuts begins."""
    shape: tuple[int, ...] = ()
    cut: tuple[slice, ...] = ()

    def run(self) -> int:
        """Does it; returns the bytes read. Raises InvalidCheckpointError if they differ from what was saved."""
        if self.block is None:
            return self.shard.read_range(self.chunk, self.start, self.stop, self.into)
        buffer = np.empty(self.stop - self.start, np.uint8)
        count = self.shard.read_range(self.chunk, self.start, self.stop, buffer.data)
        size = self.block.itemsize
        for extent in self.shape:
            size *= extent
        begin = self.first - self.start
        words = buffer[begin : begin + size].view(self.block.dtype).reshape(self.shape)
        self.block[...] = words[self.cut]
        return count


def reads_of_block(
    tensor: StoredTensor, shards: Mapping[str, Shard], result: Array, starts: Sequence[int]
) -> Iterator[Read]:
    """The tasks that fill `result`, a block of the tensor that begins at `starts`."""
    for chunk in tensor.chunks:
        shared = [
            (max(start, offset), min(start + size, offset + extent))
            for start, size, offset, extent in zip(starts, result.shape, chunk.offset, chunk.shape, strict=True)
        ]
        if any(low >= high for low, high in shared):
            if 0 in chunk.shape:  # an empty tensor: its checksum is looked at all the same
                yield from reads_of_chunk(tensor, shards[chunk.file], chunk)
            continue
        to = tuple(slice(low - start, high - start) for (low, high), start in zip(shared, starts, strict=True))
        of = tuple(slice(low - at, high - at) for (low, high), at in zip(shared, chunk.offset, strict=True))
        place: Any = (*to, ...)  # the ellipsis keeps a scalar an array
        target = result[place]
        if target.shape == chunk.shape and target.flags.c_contiguous:
            yield from reads_of_chunk(tensor, shards[chunk.file], chunk, target)
        else:
            yield from _reads_of_cut(tensor, shards[chunk.file], chunk, 0, chunk.shape, of, target)


def reads_of_chunk(tensor: StoredTensor, shard: Shard, chunk: Chunk, target: Array | None = None) -> Iterator[Read]:
    """The tasks that read a whole chunk into a contiguous array, or only verify it."""
    size = num_bytes(tensor.dtype, chunk.shape)
    memory = as_bytes(target) if target is not None else None
    start = 0
    while True:
        _, stop = shard.cover(chunk, start, min(start + _STRIP, size), size)
        into = memory[start:stop] if memory is not None else None
        yield Read(shard=shard, chunk=chunk, start=start, stop=stop, into=into)
        start = stop
        if start >= size:
            return


def run_reads(reads: Iterable[Read]) -> int:
    """Carries out the tasks on as many threads as help; returns the bytes read, or raises the first error."""
    tasks = list(reads)
    num_threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)), len(tasks))
    if num_threads < 2 or sum(task.stop - task.start for task in tasks) < _STRIP:
        return sum(task.run() for task in tasks)
    with ThreadPoolExecutor(num_threads, "ms-ckpt-read") as threads:
        try:
            return sum(threads.map(Read.run, tasks))
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _reads_of_cut(
    tensor: StoredTensor,
    shard: Shard,
    chunk: Chunk,
    first: int,
    shape: tuple[int, ...],
    of: tuple[slice, ...],
    target: Array,
) -> Iterator[Read]:
    """The tasks for a block `of` the sub-array of `shape` that begins at byte `first` of the chunk."""
    size = num_bytes(tensor.dtype, chunk.shape)
    row_bytes = num_bytes(tensor.dtype, shape[1:])
    is_cut_below = any(cut != slice(0, extent) for cut, extent in zip(of[1:], shape[1:], strict=True))
    if is_cut_below and len(shape) > 2:
        run = num_bytes(tensor.dtype, shape[2:]) * (of[1].stop - of[1].start)
        if run >= _SHORT_RUN:  # such as rows of each expert: what lies between them is not read
            for row in range(of[0].start, of[0].stop):
                begin = first + row * row_bytes
                yield from _reads_of_cut(tensor, shard, chunk, begin, shape[1:], of[1:], target[row - of[0].start])
            return
    low, high = of[0].start, of[0].stop
    rows = max(1, _STRIP // row_bytes)
    if shard.cover(chunk, 0, 1, size) == (0, size):  # only the chunk as a whole can be verified: read it once
        rows = high - low
    for at in range(low, high, rows):
        end = min(at + rows, high)
        start, stop = shard.cover(chunk, first + at * row_bytes, first + end * row_bytes, size)
        yield Read(
            shard=shard,
            chunk=chunk,
            start=start,
            stop=stop,
            block=target[at - low : end - low],
            first=first + at * row_bytes,
            shape=(end - at, *shape[1:]),
            cut=(slice(None), *of[1:]),
        )


def empty_block(tensor: StoredTensor, shape: tuple[int, ...]) -> Array:
    """Fresh memory for a block of the tensor."""
    return np.empty(shape, NUMPY_DTYPES[tensor.dtype])
