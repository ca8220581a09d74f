"""The index of a checkpoint: which tensors there are, and in which bytes of which file they lie."""

import re
from dataclasses import dataclass, replace
from operator import sub
from typing import Any

from ms_ckpt.document import check_keys, from_bytes, to_bytes
from ms_ckpt.errors import InvalidCheckpointError
from ms_ckpt.tensor import NUMPY_DTYPES
from ms_ckpt.tiling import check_inside, check_tiling

FORMAT = "ms-ckpt.index"
PART_FORMAT = "ms-ckpt.part"
_CHECKSUM = re.compile(r"crc32:[0-9a-f]{8}")
_FILE_NAME = re.compile(r"rank-[0-9]{5,}\.safetensors")


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

    def box(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offset and shape of the block that the chunks fill: of a whole checkpoint, the tensor itself."""
        axes = range(len(self.shape))
        low = tuple(min(chunk.offset[axis] for chunk in self.chunks) for axis in axes)
        high = (max(chunk.offset[axis] + chunk.shape[axis] for chunk in self.chunks) for axis in axes)
        return low, tuple(map(sub, high, low))


@dataclass(frozen=True, kw_only=True)
class Index:
    """The document `index.json`, of a whole checkpoint or of one rank's part of it."""

    step: int
    files: dict[str, StoredFile]
    tensors: dict[str, StoredTensor]
    rank: int | None = None
    """Whose part it is; None for a whole checkpoint."""
    world_size: int | None = None
    """How many parts make a whole; None for a whole checkpoint."""

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
        kind = {"format": FORMAT, "version": 1, "step": self.step}
        if self.rank is not None:
            kind = {**kind, "format": PART_FORMAT, "rank": self.rank, "world_size": self.world_size}
        return to_bytes({**kind, "files": files, "tensors": tensors})

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "index.json") -> "Index":
        """Reads and checks the document; raises InvalidCheckpointError, naming the file `name` and the place.

        The chunks of a whole checkpoint must tile every tensor; those of a part must tile a block of it.
        """
        document = from_bytes(data, name, format_name=FORMAT, other_format=PART_FORMAT)
        is_part = document["format"] == PART_FORMAT
        keys = {"format", "version", "step", "files", "tensors"} | ({"rank", "world_size"} if is_part else set())
        try:
            check_keys(document, keys, "document")
            files = {file: _read_file(file, value) for file, value in _object(document["files"], "files").items()}
            tensors = {
                tensor: _read_tensor(tensor, value, is_part=is_part)
                for tensor, value in _object(document["tensors"], "tensors").items()
            }
            for tensor, stored in tensors.items():
                for chunk in stored.chunks:
                    if chunk.file not in files:
                        raise InvalidCheckpointError(f"tensor {tensor}: file {chunk.file!r} is not in `files`")
            rank, world_size = (_count(document[key], key) if is_part else None for key in ("rank", "world_size"))
            if rank is not None and world_size is not None and rank >= world_size:
                raise InvalidCheckpointError(f"rank {rank} of {world_size} is impossible")
            return cls(
                step=_count(document["step"], "step"), files=files, tensors=tensors, rank=rank, world_size=world_size
            )
        except InvalidCheckpointError as error:
            raise InvalidCheckpointError(f"{name}: {error}") from error


def _read_file(name: str, value: object) -> StoredFile:
    where = f"file {name!r}"
    if not _FILE_NAME.fullmatch(name):
        raise InvalidCheckpointError(f"{where}: expected a name like rank-00000.safetensors")
    entry = check_keys(value, {"bytes", "header_bytes", "header_checksum"}, where)
    return StoredFile(
        bytes=_count(entry["bytes"], where),
        header_bytes=_count(entry["header_bytes"], where),
        header_checksum=_checksum(entry["header_checksum"], where),
    )


def _read_tensor(name: str, value: object, *, is_part: bool) -> StoredTensor:
    where = f"tensor {name}"
    entry = check_keys(value, {"dtype", "shape", "chunks"}, where)
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in NUMPY_DTYPES:
        raise InvalidCheckpointError(f"{where}: unknown dtype {entry['dtype']!r}")
    shape = _extents(entry["shape"], where)
    if not isinstance(entry["chunks"], list) or not entry["chunks"]:
        raise InvalidCheckpointError(f"{where}: expected a list of chunks, found {entry['chunks']!r}")
    chunks = tuple(_read_chunk(chunk, where) for chunk in entry["chunks"])
    stored = StoredTensor(dtype=entry["dtype"], shape=shape, chunks=chunks)
    if is_part:
        check_inside(shape, chunks, where)
        offset, extents = stored.box()
        moved = [replace(chunk, offset=tuple(map(sub, chunk.offset, offset))) for chunk in chunks]
        check_tiling(extents, moved, where)
    else:
        check_tiling(shape, chunks, where)
    return stored


def _read_chunk(value: object, where: str) -> Chunk:
    entry = check_keys(value, {"file", "key", "offset", "shape", "checksum"}, where)
    if not isinstance(entry["file"], str) or not isinstance(entry["key"], str):
        raise InvalidCheckpointError(f"{where}: file and key of a chunk must be strings")
    return Chunk(
        file=entry["file"],
        key=entry["key"],
        offset=_extents(entry["offset"], where),
        shape=_extents(entry["shape"], where),
        checksum=_checksum(entry["checksum"], where),
    )


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidCheckpointError(f"{name}: expected an object, found {type(value).__name__}")
    return value


def _count(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        raise InvalidCheckpointError(f"{where}: expected a whole number >= 0, found {value!r}")
    return value


def _extents(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InvalidCheckpointError(f"{where}: expected a list of whole numbers, found {value!r}")
    return tuple(_count(extent, where) for extent in value)


def _checksum(value: object, where: str) -> str:
    if not isinstance(value, str) or not _CHECKSUM.fullmatch(value):
        raise InvalidCheckpointError(f"{where}: expected a checksum crc32:xxxxxxxx, found {value!r}")
    return value
