"""A new file written in large aligned blocks past the page cache, so that filling a block overlaps writing the last.

O_DIRECT with preallocated space was the fastest durable write found (3.6 GB/s here; buffered writes and fsync 1.8), and
it does not push the training data out of the page cache. File systems without it (tmpfs) get ordinary writes.
"""

import ctypes
import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_BLOCK = 2 << 20
_NUM_BLOCKS = 2  # one is filled while another is written; more, or larger ones, leave the cache before they are written
_ALIGNMENT = 4096
_KEEP_SIZE = 1  # linux/falloc.h


class BlockFile:
    """A file of a size known in advance, whose first bytes (a header) are given last; see `new_block_file`."""

    def __init__(self, descriptor: int, size: int, header_bytes: int, writer: ThreadPoolExecutor) -> None:
        """Used by `new_block_file`."""
        self._descriptor = descriptor
        self._size = size
        self._writer = writer
        self._under_way: deque[tuple[Future[None], NDArray[np.uint8]]] = deque()
        self._num_blocks = 0
        self._block = self._first = self._take_block()
        self._place = 0
        self._filled = 0
        self._skip(header_bytes)

    def append(self, data: NDArray[np.uint8]) -> None:
        """Adds bytes; they may be changed as soon as this returns. Raises OSError if an earlier write failed."""
        while len(data):
            count = min(len(data), _BLOCK - self._filled)
            np.copyto(self._block[self._filled : self._filled + count], data[:count])
            data = data[count:]
            self._advance(count)

    def finish(self, header: bytes) -> None:
        """Writes what is left and the header, cuts the file to its size and fsyncs it."""
        if self._block is not self._first:
            self._write_later(self._block, self._place, self._filled)
        while self._under_way:
            self._under_way.popleft()[0].result()
        self._store_header(header)
        os.ftruncate(self._descriptor, self._size)  # the last block was written up to its alignment
        os.fsync(self._descriptor)

    def _store_header(self, header: bytes) -> None:
        """The first block with the header in it; a header beyond the first block goes after it, unaligned."""
        head = np.frombuffer(header, np.uint8)
        first = min(len(head), _BLOCK)
        self._first[:first] = head[:first]
        _write_block(self._descriptor, self._first, 0, min(self._size, _BLOCK))
        if len(head) > first:
            _use_page_cache(self._descriptor)
            rest = head[first:]
            while len(rest):
                written = os.pwrite(self._descriptor, rest.data, len(head) - len(rest))
                rest = rest[written:]

    def _skip(self, count: int) -> None:
        while count:
            step = min(count, _BLOCK - self._filled)
            self._block[self._filled : self._filled + step] = 0
            self._advance(step)
            count -= step

    def _advance(self, count: int) -> None:
        self._filled += count
        if self._filled == _BLOCK:
            if self._block is not self._first:
                self._write_later(self._block, self._place, _BLOCK)
            self._place += _BLOCK
            self._filled = 0
            self._block = self._take_block()

    def _write_later(self, block: NDArray[np.uint8], place: int, count: int) -> None:
        self._under_way.append((self._writer.submit(_write_block, self._descriptor, block, place, count), block))

    def _take_block(self) -> NDArray[np.uint8]:
        if self._num_blocks <= _NUM_BLOCKS:  # and the first, which is kept
            self._num_blocks += 1
            return np.frombuffer(mmap.mmap(-1, _BLOCK), np.uint8)  # page-aligned, as O_DIRECT demands
        written, block = self._under_way.popleft()
        written.result()
        return block


@contextmanager
def new_block_file(path: Path, size: int, header_bytes: int) -> Iterator[BlockFile]:
    """Creates a file to be filled by `append` and `finish`.

    Raises OSError if the file exists, or its space cannot be had (a full disk is noticed before anything is written).
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with ExitStack() as stack:
        descriptor = os.open(path, flags, 0o644)
        stack.callback(os.close, descriptor)
        if size > _BLOCK:
            allocate(descriptor, size)
            _bypass_page_cache(descriptor)
        writer = stack.enter_context(ThreadPoolExecutor(1, "ms-ckpt-write"))
        yield BlockFile(descriptor, size, header_bytes, writer)


def allocate(descriptor: int, size: int) -> None:
    """Reserves the space of a file; does nothing where the file system cannot. Raises OSError if there is no room."""
    libc = ctypes.CDLL(None, use_errno=True)
    while libc.fallocate(descriptor, _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size)) != 0:
        code = ctypes.get_errno()
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _bypass_page_cache(descriptor: int) -> None:
    """Turns O_DIRECT on; tmpfs and others refuse, and then it stays off."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise


def _use_page_cache(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)


def _write_block(descriptor: int, block: NDArray[np.uint8], place: int, count: int) -> None:
    """Writes the first `count` bytes of a block, rounded up to the alignment, at `place`."""
    padded = -(-count // _ALIGNMENT) * _ALIGNMENT
    block[count:padded] = 0
    data = block[:padded].data
    while data:
        written = os.pwrite(descriptor, data, place)
        if written % _ALIGNMENT and written < len(data):  # a short write breaks the alignment
            _use_page_cache(descriptor)
        data, place = data[written:], place + written
