"""A rank's part of a tensor, and writing a rank's parts to its file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ms_ckpt.errors import ValuesError
from ms_ckpt.index import Chunk, StoredFile, StoredTensor
from ms_ckpt.shard_writer import write_shard
from ms_ckpt.tensor import LazyTensor, RawTensor, Source, form_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """What one rank holds of a tensor."""

    data: Source
    offset: tuple[int, ...]
    """Where it starts in the tensor, an index per axis."""
    shape: tuple[int, ...]
    """The whole tensor's shape."""
    replica: int = 0
    """Which copy this is, of those ranks that hold the same block: copy 0 is written, the others are not."""

    def __post_init__(self) -> None:
        """Raises ValuesError if it does not lie inside the tensor."""
        extents = self.data.shape
        if len(extents) != len(self.shape) or len(self.offset) != len(self.shape):
            raise ValuesError(
                f"block: data {list(extents)}, offset {list(self.offset)} and shape {list(self.shape)} differ in axes"
            )
        if any(at < 0 or at + size > whole for at, size, whole in zip(self.offset, extents, self.shape, strict=True)):
            raise ValuesError(
                f"block: {list(extents)} at {list(self.offset)} leaves the tensor's shape {list(self.shape)}"
            )


Content: TypeAlias = Source | Block | Sequence[Block]
"""What may be saved under a name: a whole tensor, or the blocks of it that this rank holds."""


def blocks_of(tensors: Mapping[str, Content]) -> dict[str, list[Block]]:
    """The blocks of everything that is to be saved; raises ValuesError, naming it, for what cannot be stored."""
    return {name: _blocks(name, content) for name, content in tensors.items()}


def _blocks(name: str, content: Content) -> list[Block]:
    if isinstance(content, Block):
        return [content]
    if isinstance(content, np.ndarray | RawTensor | LazyTensor):
        return [Block(data=content, offset=(0,) * len(content.shape), shape=tuple(content.shape))]
    if isinstance(content, Sequence) and content and all(isinstance(block, Block) for block in content):
        return list(content)
    raise ValuesError(f"{name}: expected a numpy array, RawTensor or Block, found {type(content).__name__}")


def rank_file(rank: int) -> str:
    """The name of a rank's file."""
    return f"rank-{rank:05d}.safetensors"


def write_blocks(
    folder: Path, rank: int, blocks: Mapping[str, Sequence[Block]], *, has_replicas: bool = False
) -> tuple[StoredFile, dict[str, StoredTensor]]:
    """Writes a rank's blocks to its file, fsynced; returns the file's entry, and each tensor with these chunks only.

    Copies other than the first (`replica`) are left out unless `has_replicas`.

    Raises:
        ValuesError: a tensor cannot be stored, or its blocks disagree about dtype or shape; nothing was written.
        OSError: the file could not be written.
    """
    sources: dict[str, Source] = {}
    places: list[tuple[str, str, Block]] = []
    forms: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name in sorted(blocks):
        written = [block for block in blocks[name] if _is_written(block, has_replicas=has_replicas)]
        for number, block in enumerate(written):
            found = (form_of(name, block.data)[0], tuple(block.shape))
            if forms.setdefault(name, found) != found:
                raise ValuesError(f"{name}: blocks of {forms[name]} and {found} cannot be one tensor")
            key = name if number == 0 else f"{name}#{number}"
            while number and (key in sources or key in blocks):  # a tensor may be called a#1
                key += "#"
            sources[key] = block.data
            places.append((name, key, block))
    file, checksums = write_shard(folder / rank_file(rank), sources)
    chunks: dict[str, list[Chunk]] = {}
    for name, key, block in places:
        chunk = Chunk(
            file=rank_file(rank),
            key=key,
            offset=tuple(block.offset),
            shape=tuple(block.data.shape),
            checksum=checksums[key],
        )
        chunks.setdefault(name, []).append(chunk)
    return file, {
        name: StoredTensor(dtype=forms[name][0], shape=forms[name][1], chunks=tuple(chunks[name])) for name in chunks
    }


def _is_written(block: Block, *, has_replicas: bool) -> bool:
    is_part_without_elements = 0 in block.data.shape and 0 not in block.shape  # of an axis shorter than its ranks
    return (has_replicas or block.replica == 0) and not is_part_without_elements


def join_tensors(parts: Iterable[tuple[str, Mapping[str, StoredTensor]]]) -> dict[str, StoredTensor]:
    """One entry a tensor from the entries that (a source's name, its tensors) give, in order of names.

    Raises ValuesError, naming tensor and sources, if they disagree about dtype or shape.
    """
    joined: dict[str, tuple[str, StoredTensor]] = {}
    for source, tensors in parts:
        for name, tensor in tensors.items():
            first, before = joined.setdefault(name, (source, replace(tensor, chunks=())))
            if (before.dtype, before.shape) != (tensor.dtype, tensor.shape):
                raise ValuesError(
                    f"{name}: {before.dtype} {list(before.shape)} in {first}, "
                    f"{tensor.dtype} {list(tensor.shape)} in {source}"
                )
            joined[name] = (first, replace(before, chunks=before.chunks + tensor.chunks))
    return {name: joined[name][1] for name in sorted(joined)}
