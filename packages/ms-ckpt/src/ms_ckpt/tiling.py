"""Whether the chunks of a tensor cover it exactly once."""

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ms_ckpt.errors import InvalidCheckpointError

_MAX_GRID_CELLS = 10_000_000


class Placed(Protocol):
    """A block with its place in a tensor."""

    @property
    def offset(self) -> tuple[int, ...]:
        """Where it starts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""


def check_tiling(shape: tuple[int, ...], chunks: Sequence[Placed], where: str) -> None:
    """Raises InvalidCheckpointError, naming `where`, unless the chunks cover the shape without gap or overlap.

    Counts, on the grid that the chunks' edges make, how many chunks cover each cell: exactly one is right.
    """
    check_inside(shape, chunks, where)
    if len(chunks) == 1:
        if chunks[0].shape != shape:
            raise InvalidCheckpointError(f"{where}: its chunks leave a gap")
        return
    if any(0 in chunk.shape for chunk in chunks):
        raise InvalidCheckpointError(f"{where}: an empty chunk beside others")
    edges = [
        sorted({e for c in chunks for e in (c.offset[axis], c.offset[axis] + c.shape[axis])} | {0, size})
        for axis, size in enumerate(shape)
    ]
    if math.prod(len(axis_edges) - 1 for axis_edges in edges) > _MAX_GRID_CELLS:
        raise InvalidCheckpointError(f"{where}: {len(chunks)} chunks are split too irregularly to check")
    places = [{edge: number for number, edge in enumerate(axis_edges)} for axis_edges in edges]
    covered = np.zeros([len(axis_edges) - 1 for axis_edges in edges], np.int32)
    for chunk in chunks:
        cells = tuple(
            slice(place[start], place[start + extent])
            for place, start, extent in zip(places, chunk.offset, chunk.shape, strict=True)
        )
        covered[cells] += 1
    if (covered == 0).any():
        raise InvalidCheckpointError(f"{where}: its chunks leave a gap")
    if (covered > 1).any():
        raise InvalidCheckpointError(f"{where}: its chunks overlap")


def check_inside(shape: tuple[int, ...], chunks: Sequence[Placed], where: str) -> None:
    """Raises InvalidCheckpointError, naming `where`, if a chunk leaves the shape."""
    for chunk in chunks:
        inside = len(chunk.offset) == len(chunk.shape) == len(shape) and all(
            start + extent <= size for start, extent, size in zip(chunk.offset, chunk.shape, shape, strict=True)
        )
        if not inside:
            raise InvalidCheckpointError(
                f"{where}: chunk at {list(chunk.offset)} of shape {list(chunk.shape)} "
                f"leaves the tensor's shape {list(shape)}"
            )
