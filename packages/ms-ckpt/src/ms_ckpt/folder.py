"""One checkpoint folder, `step-00001000/`: writing its files, and opening it with everything verified."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ms_ckpt.document import check_keys, check_values, from_bytes, to_bytes
from ms_ckpt.errors import InvalidCheckpointError, ValuesError
from ms_ckpt.index import Chunk, Index, StoredTensor
from ms_ckpt.shard import Shard, write_shard
from ms_ckpt.tensor import NUMPY_DTYPES, Array, Tensor, num_bytes, returned_form, stored_form

STATE_FORMAT = "ms-ckpt.state"
_NAME = re.compile(r"step-(\d{8,})")


def folder_name(step: int) -> str:
    """The name of a step's folder; raises ValuesError for anything but a whole number >= 0."""
    if type(step) is not int or step < 0:
        raise ValuesError(f"step: expected a whole number >= 0, found {step!r}")
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step that a folder of this name holds, or None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and folder_name(int(match[1])) == name else None


def write_folder(folder: Path, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Fills an empty folder with a whole checkpoint, every file and the folder fsynced, COMMIT last.

    Raises:
        ValuesError: a value or tensor cannot be stored exactly.
        OSError: something could not be written.
    """
    state = state_bytes(step, values)
    stored = {name: stored_form(name, tensor) for name, tensor in tensors.items()}
    name = "rank-00000.safetensors"
    file, checksums = write_shard(folder / name, stored)
    entries = {}
    for key, (dtype, words) in sorted(stored.items()):
        chunk = Chunk(file=name, key=key, offset=(0,) * words.ndim, shape=words.shape, checksum=checksums[key])
        entries[key] = StoredTensor(dtype=dtype, shape=words.shape, chunks=(chunk,))
    index = Index(step=step, files={name: file}, tensors=entries).to_bytes()
    write_file(folder / "index.json", index)
    write_file(folder / "state.json", state)
    sync_folder(folder)  # the names of all files are durable before COMMIT vouches for them
    write_file(folder / "COMMIT", _commit_bytes(index, state))
    sync_folder(folder)


def state_bytes(step: int, values: Mapping[str, Any]) -> bytes:
    """The bytes of `state.json`; raises ValuesError, naming the path to a value that JSON would change."""
    values = dict(values)
    check_values(values)
    return to_bytes({"format": STATE_FORMAT, "version": 1, "step": step, "values": values})


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file and fsyncs it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the folder's list of names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class CheckpointFolder:
    """A checkpoint on disk: index and values verified, tensors verified as they are read.

    Get one from `open_folder`.
    """

    def __init__(self, path: Path, index: Index, values: dict[str, Any], shards: Mapping[str, Shard]) -> None:
        """Used by `open_folder`."""
        self.path = path
        self.index = index
        self.values = values
        self._shards = shards

    @property
    def step(self) -> int:
        """The step that was saved."""
        return self.index.step

    def read(self, name: str) -> Tensor:
        """A whole tensor, assembled from its chunks; raises InvalidCheckpointError if a byte of it differs."""
        return self.read_slice(name, [slice(None)] * len(self._tensor(name).shape))

    def read_slice(self, name: str, slices: Sequence[slice]) -> Tensor:
        """A block of a tensor, one slice (step 1) for each axis.

        Chunks that touch the block are read and verified as a whole, others not at all.

        Raises:
            ValuesError: no such tensor, or the slices do not fit it.
            InvalidCheckpointError: a chunk's bytes are not those that were saved.
        """
        tensor = self._tensor(name)
        if len(slices) != len(tensor.shape) or any(cut.step not in (None, 1) for cut in slices):
            raise ValuesError(f"{name}: expected {len(tensor.shape)} slices of step 1 for its shape {tensor.shape}")
        bounds = [cut.indices(size)[:2] for cut, size in zip(slices, tensor.shape, strict=True)]
        starts = tuple(start for start, _ in bounds)
        shape = tuple(max(0, stop - start) for start, stop in bounds)
        result = np.empty(shape, NUMPY_DTYPES[tensor.dtype])
        for chunk in tensor.chunks:
            self._copy_chunk(tensor, chunk, result, starts)
        return returned_form(tensor.dtype, result)

    def verify(self) -> None:
        """Reads every byte of every tensor; raises InvalidCheckpointError at the first difference."""
        for tensor in self.index.tensors.values():
            for chunk in tensor.chunks:
                self._shards[chunk.file].verify(chunk, num_bytes(tensor.dtype, chunk.shape))

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self.index.tensors:
            raise ValuesError(f"{self.path}: holds no tensor {name!r}")
        return self.index.tensors[name]

    def _copy_chunk(self, tensor: StoredTensor, chunk: Chunk, result: Array, starts: tuple[int, ...]) -> None:
        """Copies what chunk and result share; straight into place where the chunk is one run of the result's rows."""
        shared = [
            (max(start, offset), min(start + size, offset + extent))
            for start, size, offset, extent in zip(starts, result.shape, chunk.offset, chunk.shape, strict=True)
        ]
        if any(low >= high for low, high in shared) and 0 not in chunk.shape:
            return
        to = tuple(slice(low - start, high - start) for (low, high), start in zip(shared, starts, strict=True))
        of = tuple(slice(low - at, high - at) for (low, high), at in zip(shared, chunk.offset, strict=True))
        place: Any = (*to, ...)  # the ellipsis keeps a scalar an array
        target = result[place]
        if target.shape == chunk.shape and target.flags.c_contiguous:
            self._shards[chunk.file].read(chunk, target)
            return
        block = np.empty(chunk.shape, NUMPY_DTYPES[tensor.dtype])
        self._shards[chunk.file].read(chunk, block)
        target[...] = block[of]


@contextmanager
def open_folder(path: Path) -> Iterator[CheckpointFolder]:
    """Opens a checkpoint, verifying all but the tensors' bytes: COMMIT, index, state, file list, sizes, headers.

    Raises InvalidCheckpointError, naming the folder and what is wrong with it.
    """
    with ExitStack() as stack:
        try:
            folder = _open(path, stack)
        except InvalidCheckpointError as error:
            raise InvalidCheckpointError(f"{path}: {error}") from error
        try:
            yield folder
        except InvalidCheckpointError as error:
            raise InvalidCheckpointError(f"{path}: {error}") from error


def _open(path: Path, stack: ExitStack) -> CheckpointFolder:
    step = step_of(path.name)
    if step is None:
        raise InvalidCheckpointError("not a checkpoint; its name would be step- and eight digits")
    commit = _read_file(path / "COMMIT", limit=1 << 12)
    index_data, state_data = _read_file(path / "index.json"), _read_file(path / "state.json")
    if commit != _commit_bytes(index_data, state_data):
        raise InvalidCheckpointError(_explain(commit, index_data, state_data))
    index = Index.from_bytes(index_data)
    state = from_bytes(state_data, "state.json", format_name=STATE_FORMAT)
    check_keys(state, {"format", "version", "step", "values"}, "state.json")
    values = state["values"]
    if not isinstance(values, dict):
        raise InvalidCheckpointError(f"state.json: values: expected an object, found {type(values).__name__}")
    if not (step == index.step == state["step"]):
        raise InvalidCheckpointError(f"step {index.step} in index.json, {state['step']} in state.json, {step} by name")
    allowed = {"COMMIT", "index.json", "state.json", *index.files}
    if extra := sorted(set(os.listdir(path)) - allowed):  # noqa: PTH208 (names are all that is needed)
        raise InvalidCheckpointError(f"unexpected file {', '.join(extra)}")
    chunks: dict[str, dict[str, tuple[str, Chunk]]] = {name: {} for name in index.files}
    for name, tensor in index.tensors.items():
        for chunk in tensor.chunks:
            if chunk.key in chunks[chunk.file]:
                raise InvalidCheckpointError(f"index.json: tensor {name}: key {chunk.key!r} is used twice")
            chunks[chunk.file][chunk.key] = (tensor.dtype, chunk)
    shards = {name: stack.enter_context(Shard(path / name, file, chunks[name])) for name, file in index.files.items()}
    return CheckpointFolder(path, index, values, shards)


def _read_file(path: Path, limit: int = 1 << 30) -> bytes:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidCheckpointError(f"{path.name}: not a regular file")
        if status.st_size > limit:
            raise InvalidCheckpointError(f"{path.name}: {status.st_size} bytes, expected at most {limit}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InvalidCheckpointError(f"{path.name}: missing") from error
    except OSError as error:
        raise InvalidCheckpointError(f"{path.name}: cannot be read: {error.strerror}") from error


def _commit_bytes(index: bytes, state: bytes) -> bytes:
    lines = ["ms-ckpt.commit 1", f"sha256:{_sha256(index)} index.json", f"sha256:{_sha256(state)} state.json", ""]
    return "\n".join(lines).encode("ascii")


def _explain(commit: bytes, index: bytes, state: bytes) -> str:
    """Which file it is that COMMIT does not vouch for."""
    if not commit.startswith(b"ms-ckpt.commit 1\n"):
        return f"COMMIT: begins with {commit[:20]!r}; this reader knows b'ms-ckpt.commit 1'"
    changed = [
        name for name, data in (("index.json", index), ("state.json", state)) if _sha256(data).encode() not in commit
    ]
    return f"{' and '.join(changed)}: hash differs from COMMIT's" if changed else "COMMIT: malformed"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
