"""The mesh: how ranks are numbered, and which meshes a world and a model allow."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product

AXES = ("data", "tensor", "pipeline", "context", "expert")
_SLOWEST_FIRST = ("data", "pipeline", "expert", "context", "tensor")


def coordinates_of(rank: int, mesh: Mapping[str, int]) -> dict[str, int]:
    """A rank's place on each axis; `tensor` changes fastest, then `context`, `expert`, `pipeline`, `data`."""
    place = {}
    for axis in reversed(_SLOWEST_FIRST):
        rank, place[axis] = divmod(rank, mesh[axis])
    return {axis: place[axis] for axis in AXES}


def rank_at(place: Mapping[str, int], mesh: Mapping[str, int]) -> int:
    """The rank at these coordinates."""
    rank = 0
    for axis in _SLOWEST_FIRST:
        rank = rank * mesh[axis] + place[axis]
    return rank


def groups_of(rank: int, mesh: Mapping[str, int]) -> dict[str, list[int]]:
    """For each axis, the ranks that differ from this one in that coordinate only, itself included, rising."""
    place = coordinates_of(rank, mesh)
    return {axis: [rank_at({**place, axis: at}, mesh) for at in range(mesh[axis])] for axis in AXES}


def spell(mesh: Mapping[str, int]) -> str:
    """The mesh in words: `data 2 x tensor 4`; axes of size 1 are left out, except `data`."""
    return " x ".join(f"{axis} {mesh[axis]}" for axis in AXES if axis == "data" or mesh[axis] > 1)


def nearest_meshes(
    wanted: Mapping[str, int], world_size: int, is_valid: Callable[[Mapping[str, int]], bool], count: int = 3
) -> list[dict[str, int]]:
    """Up to `count` valid meshes of this world, nearest first: by the sum over axes of |log2(size / wanted size)|."""

    def distance(mesh: Mapping[str, int]) -> float:
        return sum(abs(math.log2(mesh[axis] / max(1, wanted[axis]))) for axis in AXES)

    valid = [mesh for mesh in _meshes(world_size) if is_valid(mesh)]
    # At equal distance the mesh with more data parallelism first: it needs the least communication.
    return sorted(valid, key=lambda mesh: (distance(mesh), -mesh["data"], [mesh[axis] for axis in AXES]))[:count]


def _meshes(world_size: int) -> Iterator[dict[str, int]]:
    divisors = [size for size in range(1, world_size + 1) if world_size % size == 0]
    for tensor, pipeline, context, expert in product(divisors, repeat=4):
        if world_size % (tensor * pipeline * context * expert) == 0:
            data = world_size // (tensor * pipeline * context * expert)
            yield {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context, "expert": expert}
