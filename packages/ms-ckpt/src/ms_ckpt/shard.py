"""One safetensors file, read with every byte verified in the same pass.

A reader here looks up every byte range in the index and in the file's own header, and demands that both agree.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ms_ckpt.checksum import checksum, spell_checksum
from ms_ckpt.errors import InvalidCheckpointError
from ms_ckpt.index import Chunk, StoredFile
from ms_ckpt.pieces import Pieces, metadata_key, parse_pieces
from ms_ckpt.tensor import num_bytes

_STEP = 256 << 10  # read and checksum this much at a time: the second pass finds the bytes in the core's own cache


class Shard:
    """An open safetensors file whose size and header are verified; `read_range` verifies and returns bytes of chunks.

    Use it as a context manager, or call `close`. Several threads may read at once.
    """

    def __init__(self, path: Path, file: StoredFile, chunks: Mapping[str, tuple[str, Chunk]]) -> None:
        """Opens the file; `chunks` are (dtype, chunk) by key. Raises InvalidCheckpointError, naming the file."""
        self._name = path.name
        self._offsets: dict[str, int] = {}
        self._pieces: dict[str, Pieces] = {}
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

    def cover(self, chunk: Chunk, start: int, stop: int, size: int) -> tuple[int, int]:
        """The smallest range that can be verified by itself and covers bytes start to stop of a chunk of `size`."""
        pieces = self._pieces.get(chunk.key)
        return pieces.cover(start, stop, size) if pieces is not None else (0, size)

    def read_range(self, chunk: Chunk, start: int, stop: int, into: memoryview | None = None) -> int:
        """Reads and verifies bytes start to stop of a chunk (a range that `cover` gave), and returns their number.

        Without `into` they are verified only. Raises InvalidCheckpointError if they differ from what was saved.
        """
        pieces = self._pieces.get(chunk.key)
        running = before = (pieces.at(start) if pieces is not None else 0) or 0
        step = memoryview(bytearray(min(stop - start, _STEP))) if into is None else None
        place = start
        while place < stop:
            count = min(_STEP, stop - place)
            data = into[place - start : place - start + count] if into is not None else step[:count]  # type: ignore[index]
            self._fill(data, self._offsets[chunk.key] + place)
            running = checksum(data, running)
            place += count
        expected = pieces.at(stop) if pieces is not None else None
        wanted = spell_checksum(expected) if expected is not None else chunk.checksum
        if spell_checksum(running) != wanted:
            where = f"bytes {start} to {stop}" if before else f"{stop - start} bytes"
            raise InvalidCheckpointError(
                f"{self._name}: tensor {chunk.key}: checksum is {spell_checksum(running)}, expected {wanted} ({where})"
            )
        return stop - start

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
        entries, notes = self._parse(header.tobytes())
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
            pieces = parse_pieces(notes.get(metadata_key(key)), end - expected_start, chunk.checksum)
            if pieces is not None:
                self._pieces[key] = pieces
            expected_start = end
        if file.header_bytes + expected_start != file.bytes:
            raise InvalidCheckpointError(
                f"{self._name}: header and tensors cover {file.header_bytes + expected_start} of {file.bytes} bytes"
            )

    def _parse(self, header: bytes) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        try:
            if int.from_bytes(header[:8], "little") != len(header) - 8:
                raise ValueError("its length field disagrees with the index")
            entries = json.loads(header[8:].decode("utf-8"))
            notes = entries.pop("__metadata__", None) or {}
            if not isinstance(notes, dict):
                raise ValueError(f"__metadata__ is {type(notes).__name__}")
            for key, entry in entries.items():
                if [type(offset) for offset in entry["data_offsets"]] != [int, int]:
                    raise ValueError(f"offsets of {key}: {entry['data_offsets']!r}")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidCheckpointError(f"{self._name}: broken header: {error}") from error
        return entries, notes

    def _fill(self, data: memoryview, place: int) -> None:
        while data:
            try:
                count = os.preadv(self._descriptor, [data], place)
            except OSError as error:
                raise InvalidCheckpointError(f"{self._name}: cannot be read: {error.strerror}") from error
            if count == 0:
                raise InvalidCheckpointError(f"{self._name}: ends at byte {place}")
            data, place = data[count:], place + count
