"""One checkpoint folder, `step-00001000/` (whole, or one rank's part), opened with everything verified."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from operator import ge
from pathlib import Path
from typing import Any

import numpy as np

from ms_ckpt.commit import DOCUMENTS, read_documents
from ms_ckpt.errors import InvalidCheckpointError, ValuesError
from ms_ckpt.index import Chunk, Index, StoredTensor
from ms_ckpt.shard import Shard
from ms_ckpt.tensor import NUMPY_DTYPES, Array, Tensor, returned_form
from ms_ckpt.transfer import Read, empty_block, reads_of_block, reads_of_chunk, run_reads

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
        self.bytes_read = 0
        """Bytes of tensors read so far, those read only to verify others included."""

    @property
    def step(self) -> int:
        """The step that was saved."""
        return self.index.step

    def read(self, name: str) -> Tensor:
        """A whole tensor (of a rank's part, its block), assembled from its chunks.

        Raises InvalidCheckpointError if a byte of it differs.
        """
        return self.read_all({name: None})[name]

    def read_slice(self, name: str, slices: Sequence[slice]) -> Tensor:
        """A block of a tensor, one slice (step 1) for each axis.

        Read and verified are the pieces that hold it: for a split by rows hardly more than the block itself, for one by
        columns the rows that it touches. Chunks without running checksums are read as a whole.

        Raises:
            ValuesError: no such tensor, or the slices do not fit it.
            InvalidCheckpointError: the bytes are not those that were saved.
        """
        tensor = self._tensor(name)
        starts, shape = self._bounds(name, slices)
        result = empty_block(tensor, shape)
        self.bytes_read += run_reads(reads_of_block(tensor, self._shards, result, starts))
        return returned_form(tensor.dtype, result)

    def read_all(self, slices: Mapping[str, Sequence[slice] | None]) -> dict[str, Tensor]:
        """Several tensors or blocks of them (None: whole) into fresh memory, on several threads; see `read_slice`."""
        results: dict[str, Tensor] = {}
        reads: list[Read] = []
        for name, cuts in slices.items():
            tensor = self._tensor(name)
            starts, shape = self._bounds(name, cuts)
            result = empty_block(tensor, shape)
            reads += reads_of_block(tensor, self._shards, result, starts)
            results[name] = returned_form(tensor.dtype, result)
        self.bytes_read += run_reads(reads)
        return results

    def read_into(self, targets: Mapping[str, Array], slices: Mapping[str, Sequence[slice]] | None = None) -> None:
        """Reads tensors (or the blocks that `slices` name) straight into arrays of their words.

        Two passes: everything is verified before the first byte of a target changes, and verified again while it is
        read; no second copy is held. Words are `NUMPY_DTYPES` of the stored dtype (uint16 for BF16).

        Raises:
            ValuesError: a target has another shape or dtype, or cannot be written to; nothing was read.
            InvalidCheckpointError: the bytes are not those that were saved; the targets are as they were, unless the
                file changed between the two passes.
        """
        reads: list[Read] = []
        for name, target in targets.items():
            tensor = self._tensor(name)
            starts, shape = self._bounds(name, (slices or {}).get(name))
            if target.shape != shape or target.dtype != NUMPY_DTYPES[tensor.dtype] or not target.flags.writeable:
                raise ValuesError(
                    f"{name}: a target of {target.dtype} {list(target.shape)}"
                    f"{'' if target.flags.writeable else ' (read-only)'}, expected a writable array of "
                    f"{NUMPY_DTYPES[tensor.dtype]} {list(shape)}"
                )
            reads += reads_of_block(tensor, self._shards, target, starts)
        self.bytes_read += run_reads(replace(read, into=None, block=None) for read in reads)
        self.bytes_read += run_reads(reads)

    def verify_blocks(self, slices: Mapping[str, Sequence[slice] | None]) -> None:
        """Reads tensors or blocks of them and keeps none; raises InvalidCheckpointError at the first difference."""
        reads: list[Read] = []
        for name, cuts in slices.items():
            tensor = self._tensor(name)
            starts, shape = self._bounds(name, cuts)
            nowhere = np.broadcast_to(np.empty((), NUMPY_DTYPES[tensor.dtype]), shape)  # a shape without memory
            reads += reads_of_block(tensor, self._shards, nowhere, starts)
        self.bytes_read += run_reads(replace(read, into=None, block=None) for read in reads)

    def shape_of(self, name: str, slices: Sequence[slice] | None = None) -> tuple[int, ...]:
        """The shape of a tensor, or of a block of it; raises ValuesError for slices that do not fit."""
        return self._bounds(name, slices)[1]

    def verify(self) -> None:
        """Reads every byte of every tensor; raises InvalidCheckpointError at the first difference."""
        self.bytes_read += run_reads(
            read
            for tensor in self.index.tensors.values()
            for chunk in tensor.chunks
            for read in reads_of_chunk(tensor, self._shards[chunk.file], chunk)
        )

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self.index.tensors:
            raise ValuesError(f"{self.path}: holds no tensor {name!r}")
        return self.index.tensors[name]

    def _bounds(self, name: str, slices: Sequence[slice] | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Where a block starts, and its shape; raises ValuesError for slices that do not fit the tensor.

        Without slices: the whole tensor, or what a rank's part holds of it.
        """
        tensor = self._tensor(name)
        shape, held = tensor.shape, tensor.box()
        if slices is None:
            return held
        if len(slices) != len(shape) or any(cut.step not in (None, 1) for cut in slices):
            raise ValuesError(f"{name}: expected {len(shape)} slices of step 1 for its shape {shape}")
        bounds = [cut.indices(size)[:2] for cut, size in zip(slices, shape, strict=True)]
        starts, extents = tuple(start for start, _ in bounds), tuple(max(0, stop - start) for start, stop in bounds)
        ends = (at + size <= begin + extent for at, size, begin, extent in zip(starts, extents, *held, strict=True))
        if 0 not in extents and not (all(map(ge, starts, held[0])) and all(ends)):
            raise ValuesError(
                f"{name}: {list(extents)} at {list(starts)} was asked for, but this is rank {self.index.rank}'s part, "
                f"which holds {list(held[1])} at {list(held[0])}"
            )
        return starts, extents


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
    index, state_step, values = read_documents(path)
    if not (step == index.step == state_step):
        raise InvalidCheckpointError(f"step {index.step} in index.json, {state_step} in state.json, {step} by name")
    allowed = {*DOCUMENTS, *index.files}
    if extra := sorted(set(os.listdir(path)) - allowed):  # noqa: PTH208 (names are all that is needed)
        raise InvalidCheckpointError(f"unexpected file {', '.join(extra)}")
    return CheckpointFolder(path, index, values, open_shards(path, index, stack))


def open_shards(path: Path, index: Index, stack: ExitStack) -> dict[str, Shard]:
    """Opens the files of an index, their sizes and headers verified; `stack` closes them.

    Raises InvalidCheckpointError, naming the file and what is wrong.
    """
    chunks: dict[str, dict[str, tuple[str, Chunk]]] = {name: {} for name in index.files}
    for name, tensor in index.tensors.items():
        for chunk in tensor.chunks:
            if chunk.key in chunks[chunk.file]:
                raise InvalidCheckpointError(f"index.json: tensor {name}: key {chunk.key!r} is used twice")
            chunks[chunk.file][chunk.key] = (tensor.dtype, chunk)
    return {name: stack.enter_context(Shard(path / name, file, chunks[name])) for name, file in index.files.items()}
