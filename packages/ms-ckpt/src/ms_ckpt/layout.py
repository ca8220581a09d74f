"""Which block of each tensor a rank holds: from a plan (contract `plan`), or by splitting axes over a mesh.

A layout speaks of parameters; a checkpoint's tensors find theirs by name: `model.X` and `optimizer.<slot>.X` of one
shape with the parameter `X` lie as `X` does. A tensor that no parameter matches is held whole by every rank.
"""

import json
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ms_ckpt.block import Block
from ms_ckpt.errors import ConfigError, ValuesError
from ms_ckpt.tensor import Source

Ranges = tuple[tuple[int, int], ...]
"""A block: a half-open range for each axis."""


class Layout:
    """The blocks of all ranks; see `layout_of_plan` and `split_layout`."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], ranks: Sequence[Mapping[str, Ranges]]) -> None:
        """`shapes` are the whole shapes by parameter; `ranks` the block of each parameter that a rank holds."""
        self.world_size = len(ranks)
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._ranks = ranks

    def ranges(self, name: str, shape: Sequence[int], rank: int) -> Ranges | None:
        """The block of a tensor of this whole shape that a rank holds; None if it holds none."""
        parameter = self._parameter(name, tuple(shape))
        if parameter is None or 0 in shape:  # of a tensor without elements there is nothing to split
            return tuple((0, size) for size in shape)
        return self._ranks[rank].get(parameter)

    def replica(self, name: str, shape: Sequence[int], rank: int) -> int:
        """How many lower ranks hold the same block."""
        mine = self.ranges(name, shape, rank)
        return sum(self.ranges(name, shape, other) == mine for other in range(rank))

    def slices(self, shapes: Mapping[str, Sequence[int]], rank: int) -> dict[str, tuple[slice, ...]]:
        """What a rank reads of tensors of these whole shapes; those that it does not hold are left out."""
        found = {name: self.ranges(name, shape, rank) for name, shape in shapes.items()}
        return {name: tuple(slice(*each) for each in ranges) for name, ranges in found.items() if ranges is not None}

    def block(self, name: str, data: Source, rank: int) -> Block:
        """A rank's part of a tensor as the block that it is.

        Raises ValuesError, naming the tensor, if the rank holds none of it, or a block of another shape.
        """
        parameter = self._parameter(name, None)
        shape = self._shapes[parameter] if parameter is not None else tuple(data.shape)
        ranges = self.ranges(name, shape, rank)
        extents = None if ranges is None else tuple(high - low for low, high in ranges)
        if ranges is None or extents != tuple(data.shape):
            held = "none of it" if ranges is None else f"{list(ranges)} of {list(shape)}"
            raise ValuesError(
                f"{name}: the layout gives rank {rank} {held}, found data of {list(data.shape)}; give a Block instead"
            )
        offset = tuple(low for low, _ in ranges)
        return Block(data=data, offset=offset, shape=shape, replica=self.replica(name, shape, rank))

    def _parameter(self, name: str, shape: tuple[int, ...] | None) -> str | None:
        """The parameter whose block the tensor follows: the longest name after dots that is one, of the same shape."""
        rest = name
        while rest:
            if rest in self._shapes and shape in (None, self._shapes[rest]):
                return rest
            rest = rest.partition(".")[2]
        return None


def layout_of_plan(path: Path | str) -> Layout:
    """The layout of a plan file; raises ConfigError, naming the file, for anything that is no plan of version 1."""
    try:
        plan: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        found = (plan["format"], plan["version"])
        if found != ("ms-parallel.plan", 1):
            raise ConfigError(f"{path}: format {found[0]!r} version {found[1]!r}; known: 'ms-parallel.plan' version 1")
        ranks = [
            {name: tuple((int(low), int(high)) for low, high in ranges) for name, ranges in rank["slices"].items()}
            for rank in plan["ranks"]
        ]
        if [rank["rank"] for rank in plan["ranks"]] != list(range(plan["world_size"])):
            raise ConfigError(f"{path}: ranks are not 0 to {plan['world_size'] - 1} in order")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a plan: {type(error).__name__}: {error}") from error
    shapes: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        for name, ranges in rank.items():
            before = shapes.get(name, (0,) * len(ranges))
            shapes[name] = tuple(max(size, high) for size, (_, high) in zip(before, ranges, strict=True))
    return Layout(shapes, ranks)


def split_layout(
    shapes: Mapping[str, Sequence[int]], mesh: Sequence[int], splits: Mapping[str, Sequence[int | None]]
) -> Layout:
    """Splits tensors over a mesh of ranks, the last mesh axis fastest; uneven where an axis does not divide.

    Args:
        shapes: Whole shapes by name.
        mesh: Ranks along each axis of the mesh; (2, 2) are four ranks.
        splits: By pattern (the first that fits a name counts): for each mesh axis, which axis of the tensor it splits,
            or None for copies. Several mesh axes may split one axis of the tensor. Tensors that nothing fits are
            copied.

    Raises ConfigError for an axis that a tensor does not have, or a split that does not name every mesh axis.
    """
    if not mesh or any(type(size) is not int or size < 1 for size in mesh):
        raise ConfigError(f"mesh: expected whole numbers >= 1, found {list(mesh)}")
    ranks: list[dict[str, Ranges]] = []
    for rank in range(math.prod(mesh)):
        coordinates: list[int] = []
        rest = rank
        for size in reversed(mesh):
            rest, place = divmod(rest, size)
            coordinates.insert(0, place)
        ranks.append(
            {
                name: _cut(name, tuple(shape), mesh, coordinates, _axes(name, splits, len(mesh)))
                for name, shape in shapes.items()
            }
        )
    return Layout(shapes, ranks)


def _axes(name: str, splits: Mapping[str, Sequence[int | None]], num_mesh_axes: int) -> Sequence[int | None]:
    for pattern, axes in splits.items():
        if fnmatchcase(name, pattern):
            if len(axes) != num_mesh_axes:
                raise ConfigError(f"split {pattern!r}: {len(axes)} axes, but the mesh has {num_mesh_axes}")
            return axes
    return (None,) * num_mesh_axes


def _cut(
    name: str, shape: tuple[int, ...], mesh: Sequence[int], coordinates: Sequence[int], axes: Sequence[int | None]
) -> Ranges:
    ranges = [(0, size) for size in shape]
    for size, place, axis in zip(mesh, coordinates, axes, strict=True):
        if axis is None:
            continue
        if not 0 <= axis < len(shape):
            raise ConfigError(f"{name}: has {len(shape)} axes, and axis {axis} cannot be split")
        low, high = ranges[axis]
        ranges[axis] = (low + (high - low) * place // size, low + (high - low) * (place + 1) // size)
    return tuple(ranges)
