"""The index of a checkpoint: which tensors there are, and in which bytes of which file they lie."""

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_ckpt.document import check_keys, from_bytes, to_bytes
from ms_ckpt.errors import InvalidCheckpointError
from ms_ckpt.tensor import NUMPY_DTYPES

FORMAT = "ms-ckpt.index"
_CHECKSUM = re.compile(r"crc32:[0-9a-f]{8}")
_FILE_NAME = re.compile(r"rank-[0-9]{5,}\.safetensors")
_MAX_GRID_CELLS = 10_000_000


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One safetensors file: its size, and the size and checksum of its header (length bytes included)."""

    bytes: int
    header_bytes: int
    header_checksum: str


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A block of a tensor: where it starts in the tensor, its shape, and the file and key that hold it."""

    file: str
    key: str
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    checksum: str


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor: dtype in safetensors' spelling, global shape, and the chunks that tile it."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True)
class Index:
    """The document `index.json`."""

    step: int
    files: dict[str, StoredFile]
    tensors: dict[str, StoredTensor]

    def to_bytes(self) -> bytes:
        """The document as it is written."""
        files = {name: dict(vars(file)) for name, file in self.files.items()}
        tensors = {
            name: {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "chunks": [
                    {**vars(chunk), "offset": list(chunk.offset), "shape": list(chunk.shape)} for chunk in tensor.chunks
                ],
            }
            for name, tensor in self.tensors.items()
        }
        return to_bytes({"format": FORMAT, "version": 1, "step": self.step, "files": files, "tensors": tensors})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Index":
        """Reads and checks the document; raises InvalidCheckpointError, naming the place."""
        document = from_bytes(data, "index.json", format_name=FORMAT)
        check_keys(document, {"format", "version", "step", "files", "tensors"}, "index.json")
        files = {name: _read_file(name, value) for name, value in _object(document["files"], "files").items()}
        tensors = {name: _read_tensor(name, value) for name, value in _object(document["tensors"], "tensors").items()}
        for name, tensor in tensors.items():
            for chunk in tensor.chunks:
                if chunk.file not in files:
                    raise InvalidCheckpointError(f"index.json: tensor {name}: file {chunk.file!r} is not in `files`")
        return cls(step=_count(document["step"], "step"), files=files, tensors=tensors)


def _read_file(name: str, value: object) -> StoredFile:
    where = f"file {name!r}"
    if not _FILE_NAME.fullmatch(name):
        raise InvalidCheckpointError(f"index.json: {where}: expected a name like rank-00000.safetensors")
    entry = check_keys(value, {"bytes", "header_bytes", "header_checksum"}, f"index.json: {where}")
    return StoredFile(
        bytes=_count(entry["bytes"], where),
        header_bytes=_count(entry["header_bytes"], where),
        header_checksum=_checksum(entry["header_checksum"], where),
    )


def _read_tensor(name: str, value: object) -> StoredTensor:
    where = f"tensor {name}"
    entry = check_keys(value, {"dtype", "shape", "chunks"}, f"index.json: {where}")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in NUMPY_DTYPES:
        raise InvalidCheckpointError(f"index.json: {where}: unknown dtype {entry['dtype']!r}")
    shape = _extents(entry["shape"], where)
    if not isinstance(entry["chunks"], list) or not entry["chunks"]:
        raise InvalidCheckpointError(f"index.json: {where}: expected a list of chunks, found {entry['chunks']!r}")
    chunks = tuple(_read_chunk(chunk, where) for chunk in entry["chunks"])
    _check_tiling(shape, chunks, where)
    return StoredTensor(dtype=entry["dtype"], shape=shape, chunks=chunks)


def _read_chunk(value: object, where: str) -> Chunk:
    entry = check_keys(value, {"file", "key", "offset", "shape", "checksum"}, f"index.json: {where}")
    if not isinstance(entry["file"], str) or not isinstance(entry["key"], str):
        raise InvalidCheckpointError(f"index.json: {where}: file and key of a chunk must be strings")
    return Chunk(
        file=entry["file"],
        key=entry["key"],
        offset=_extents(entry["offset"], where),
        shape=_extents(entry["shape"], where),
        checksum=_checksum(entry["checksum"], where),
    )


def _check_tiling(shape: tuple[int, ...], chunks: tuple[Chunk, ...], where: str) -> None:
    """Counts, on the grid that the chunks' edges make, how many chunks cover each cell: exactly one is right."""
    for chunk in chunks:
        inside = len(chunk.offset) == len(chunk.shape) == len(shape) and all(
            start + extent <= size for start, extent, size in zip(chunk.offset, chunk.shape, shape, strict=True)
        )
        if not inside:
            raise InvalidCheckpointError(
                f"index.json: {where}: chunk at {list(chunk.offset)} of shape {list(chunk.shape)} "
                f"leaves the tensor's shape {list(shape)}"
            )
    if len(chunks) == 1:
        if chunks[0].shape != shape:
            raise InvalidCheckpointError(f"index.json: {where}: its chunks leave a gap")
        return
    if any(0 in chunk.shape for chunk in chunks):
        raise InvalidCheckpointError(f"index.json: {where}: an empty chunk beside others")
    edges = [
        sorted({e for c in chunks for e in (c.offset[axis], c.offset[axis] + c.shape[axis])} | {0, size})
        for axis, size in enumerate(shape)
    ]
    if math.prod(len(axis_edges) - 1 for axis_edges in edges) > _MAX_GRID_CELLS:
        raise InvalidCheckpointError(f"index.json: {where}: {len(chunks)} chunks are split too irregularly to check")
    places = [{edge: number for number, edge in enumerate(axis_edges)} for axis_edges in edges]
    covered = np.zeros([len(axis_edges) - 1 for axis_edges in edges], np.int32)
    for chunk in chunks:
        cells = tuple(
            slice(place[start], place[start + extent])
            for place, start, extent in zip(places, chunk.offset, chunk.shape, strict=True)
        )
        covered[cells] += 1
    if (covered == 0).any():
        raise InvalidCheckpointError(f"index.json: {where}: its chunks leave a gap")
    if (covered > 1).any():
        raise InvalidCheckpointError(f"index.json: {where}: its chunks overlap")


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidCheckpointError(f"index.json: {name}: expected an object, found {type(value).__name__}")
    return value


def _count(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        raise InvalidCheckpointError(f"index.json: {where}: expected a whole number >= 0, found {value!r}")
    return value


def _extents(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidCheckpointError(f"index.json: {where}: expected a list of whole numbers, found {value!r}")
    return tuple(_count(extent, where) for extent in value)


def _checksum(value: object, where: str) -> str:
    if not isinstance(value, str) or not _CHECKSUM.fullmatch(value):
        raise InvalidCheckpointError(f"index.json: {where}: expected a checksum crc32:xxxxxxxx, found {value!r}")
    return value
