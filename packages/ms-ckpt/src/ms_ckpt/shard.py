"""One safetensors file, written and read with checksums in the same pass as the bytes.

A reader here looks up every byte range in the index and in the file's own header, and demands that both agree.
"""

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ms_ckpt.errors import InvalidCheckpointError
from ms_ckpt.index import Chunk, StoredFile
from ms_ckpt.tensor import NUMPY_DTYPES, Array, as_bytes, num_bytes

_DTYPE_ORDER = {name: place for place, name in enumerate(NUMPY_DTYPES)}
_PIECE = 8 << 20  # checksum and write 8 MB at a time: the second pass finds the bytes still in the cache


def checksum(data: bytes | memoryview, start: int = 0) -> int:
    """The running CRC-32 (zlib's) of the data."""
    return zlib.crc32(data, start)


def spell_checksum(value: int) -> str:
    """A CRC-32 as the contract writes it."""
    return f"crc32:{value:08x}"


def write_shard(path: Path, stored: Mapping[str, tuple[str, Array]]) -> tuple[StoredFile, dict[str, str]]:
    """Writes tensors (as `stored_form` gives them) to a new, fsynced file; returns its entry and their checksums.

    The layout is that of the safetensors library: wide dtypes first, then by name; the header is padded with spaces
    to a multiple of eight, so every tensor is aligned.

    Raises OSError if the file exists or cannot be written in full.
    """
    order = sorted(stored, key=lambda name: (_DTYPE_ORDER[stored[name][0]], name))
    entries, end = {}, 0
    for name in order:
        dtype, words = stored[name]
        entries[name] = {"dtype": dtype, "shape": list(words.shape), "data_offsets": [end, end + words.nbytes]}
        end += words.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text

    checksums = {}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _write_all(descriptor, memoryview(header))
        for name in order:
            data, running = as_bytes(stored[name][1]), 0
            for start in range(0, len(data), _PIECE):
                piece = data[start : start + _PIECE]
                running = checksum(piece, running)
                _write_all(descriptor, piece)
            checksums[name] = spell_checksum(running)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    file = StoredFile(
        bytes=len(header) + end, header_bytes=len(header), header_checksum=spell_checksum(checksum(header))
    )
    return file, checksums


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


class Shard:
    """An open safetensors file whose size and header are verified; `read` verifies and returns chunks.

    Use it as a context manager, or call `close`.
    """

    def __init__(self, path: Path, file: StoredFile, chunks: Mapping[str, tuple[str, Chunk]]) -> None:
        """Opens the file; `chunks` are (dtype, chunk) by key. Raises InvalidCheckpointError, naming the file."""
        self._name = path.name
        self._offsets: dict[str, int] = {}
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise InvalidCheckpointError(f"{self._name}: cannot be opened: {error.strerror}") from error
        try:
            self._check(file, chunks)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def __enter__(self) -> "Shard":
        """The shard itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the file."""
        self.close()

    def read(self, chunk: Chunk, into: Array) -> None:
        """Reads a chunk into a C-contiguous array of its shape; raises InvalidCheckpointError if the bytes differ."""
        data = as_bytes(into)
        self._verified(chunk, (data[start : start + _PIECE] for start in range(0, len(data), _PIECE)))

    def verify(self, chunk: Chunk, size: int) -> None:
        """Reads the `size` bytes of a chunk and keeps none; raises InvalidCheckpointError if they differ."""
        buffer = memoryview(bytearray(min(size, _PIECE)))
        self._verified(chunk, (buffer[: size - start] for start in range(0, size, _PIECE)))

    def _verified(self, chunk: Chunk, pieces: Iterable[memoryview]) -> None:
        place, running = self._offsets[chunk.key], 0
        for piece in pieces:
            self._fill(piece, place)
            running = checksum(piece, running)
            place += len(piece)
        if spell_checksum(running) != chunk.checksum:
            raise InvalidCheckpointError(
                f"{self._name}: tensor {chunk.key}: checksum is {spell_checksum(running)}, expected {chunk.checksum}"
            )

    def _check(self, file: StoredFile, chunks: Mapping[str, tuple[str, Chunk]]) -> None:
        size = os.fstat(self._descriptor).st_size
        if size != file.bytes:
            raise InvalidCheckpointError(f"{self._name}: {size} bytes, expected {file.bytes}")
        if not 8 <= file.header_bytes <= file.bytes:
            raise InvalidCheckpointError(f"{self._name}: a header of {file.header_bytes} bytes is impossible")
        header = np.empty(file.header_bytes, np.uint8)
        self._fill(header.data, 0)
        found = spell_checksum(checksum(header.data))
        if found != file.header_checksum:
            raise InvalidCheckpointError(
                f"{self._name}: checksum of the header is {found}, expected {file.header_checksum}"
            )
        entries = self._parse(header.tobytes())
        if entries.keys() != chunks.keys():
            names = sorted(entries.keys() ^ chunks.keys())
            raise InvalidCheckpointError(f"{self._name}: header and index name different tensors: {', '.join(names)}")
        expected_start = 0
        for key in sorted(entries, key=lambda key: entries[key]["data_offsets"]):
            dtype, chunk = chunks[key]
            end = expected_start + num_bytes(dtype, chunk.shape)
            wanted = {"dtype": dtype, "shape": list(chunk.shape), "data_offsets": [expected_start, end]}
            if entries[key] != wanted:
                raise InvalidCheckpointError(
                    f"{self._name}: tensor {key}: header says {entries[key]}, the index expects {wanted}"
                )
            self._offsets[key] = file.header_bytes + expected_start
            expected_start = end
        if file.header_bytes + expected_start != file.bytes:
            raise InvalidCheckpointError(
                f"{self._name}: header and tensors cover {file.header_bytes + expected_start} of {file.bytes} bytes"
            )

    def _parse(self, header: bytes) -> dict[str, dict[str, Any]]:
        try:
            if int.from_bytes(header[:8], "little") != len(header) - 8:
                raise ValueError("its length field disagrees with the index")
            entries = json.loads(header[8:].decode("utf-8"))
            entries.pop("__metadata__", None)
            for key, entry in entries.items():
                if [type(offset) for offset in entry["data_offsets"]] != [int, int]:
                    raise ValueError(f"offsets of {key}: {entry['data_offsets']!r}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidCheckpointError(f"{self._name}: broken header: {error}") from error
        result: dict[str, dict[str, Any]] = entries
        return result

    def _fill(self, data: memoryview, place: int) -> None:
        while data:
            try:
                count = os.preadv(self._descriptor, [data], place)
            except OSError as error:
                raise InvalidCheckpointError(f"{self._name}: cannot be read: {error.strerror}") from error
            if count == 0:
                raise InvalidCheckpointError(f"{self._name}: ends at byte {place}")
            data, place = data[count:], place + count
