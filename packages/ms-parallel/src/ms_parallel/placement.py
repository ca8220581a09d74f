"""Where each parameter of contract `model` lies: its split axis or `replicated`, and the stages that own it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ms_parallel.errors import PlanError

Placement: TypeAlias = str | dict[str, str | int]

_BY_ROWS: Placement = {"axis": 0, "mesh_axis": "tensor"}
_BY_COLUMNS: Placement = {"axis": 1, "mesh_axis": "tensor"}
_BY_EXPERT: Placement = {"axis": 0, "mesh_axis": "expert"}
_REPLICATED: Placement = "replicated"

# Every name of the contract. A column-split projection adds its bias once, after the sum: the bias is replicated.
RULES: dict[str, Placement] = {
    "embedding.weight": _BY_ROWS,
    "position_embedding.weight": _REPLICATED,
    "embedding_norm.weight": _REPLICATED,
    "embedding_norm.bias": _REPLICATED,
    "blocks.*.attention_norm.weight": _REPLICATED,
    "blocks.*.attention_norm.bias": _REPLICATED,
    "blocks.*.attention.query.weight": _BY_ROWS,
    "blocks.*.attention.query.bias": _BY_ROWS,
    "blocks.*.attention.key.weight": _BY_ROWS,
    "blocks.*.attention.key.bias": _BY_ROWS,
    "blocks.*.attention.value.weight": _BY_ROWS,
    "blocks.*.attention.value.bias": _BY_ROWS,
    "blocks.*.attention.output.weight": _BY_COLUMNS,
    "blocks.*.attention.output.bias": _REPLICATED,
    "blocks.*.attention.query_norm.weight": _REPLICATED,
    "blocks.*.attention.key_norm.weight": _REPLICATED,
    "blocks.*.mlp_norm.weight": _REPLICATED,
    "blocks.*.mlp_norm.bias": _REPLICATED,
    "blocks.*.mlp.gate.weight": _BY_ROWS,
    "blocks.*.mlp.gate.bias": _BY_ROWS,
    "blocks.*.mlp.up.weight": _BY_ROWS,
    "blocks.*.mlp.up.bias": _BY_ROWS,
    "blocks.*.mlp.down.weight": _BY_COLUMNS,
    "blocks.*.mlp.down.bias": _REPLICATED,
    "blocks.*.mlp.router.weight": _REPLICATED,
    "blocks.*.mlp.experts.gate.weight": _BY_EXPERT,
    "blocks.*.mlp.experts.up.weight": _BY_EXPERT,
    "blocks.*.mlp.experts.down.weight": _BY_EXPERT,
    "blocks.*.mlp.shared_expert.gate.weight": _BY_ROWS,
    "blocks.*.mlp.shared_expert.up.weight": _BY_ROWS,
    "blocks.*.mlp.shared_expert.down.weight": _BY_COLUMNS,
    "norm.weight": _REPLICATED,
    "norm.bias": _REPLICATED,
    "lm_head.weight": _BY_ROWS,
    "lm_head.bias": _BY_ROWS,
}


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern, in which `*` stands for one part between dots, covers a parameter name."""
    wanted, parts = pattern.split("."), name.split(".")
    return len(wanted) == len(parts) and all(w in ("*", p) for w, p in zip(wanted, parts, strict=True))


def placement_of(name: str, rules: Iterable[tuple[str, Placement]]) -> Placement | None:
    """The placement of the first pattern that covers the name; None if there is none."""
    return next((placement for pattern, placement in rules if matches(pattern, name)), None)


def slices_of(
    name: str, shape: Sequence[int], placement: Placement, place: Mapping[str, int], mesh: Mapping[str, int]
) -> list[list[int]]:
    """The half-open range on each axis that the rank at `place` owns; raises PlanError if the axis does not divide."""
    ranges = [[0, extent] for extent in shape]
    if isinstance(placement, str):
        return ranges
    axis, mesh_axis = int(placement["axis"]), str(placement["mesh_axis"])
    if axis >= len(shape) or shape[axis] % mesh[mesh_axis] != 0:
        raise PlanError(f"{name}: axis {axis} of {list(shape)} does not divide by {mesh_axis} {mesh[mesh_axis]}")
    size = shape[axis] // mesh[mesh_axis]
    ranges[axis] = [place[mesh_axis] * size, (place[mesh_axis] + 1) * size]
    return ranges


def stages_of(name: str, num_blocks: int, num_stages: int, *, is_tied: bool) -> set[int]:
    """The pipeline stages that own a parameter; the first stages take one more block if they do not divide evenly."""
    parts = name.split(".")
    if parts[0] == "blocks":
        less, extra = divmod(num_blocks, num_stages)
        block, long = int(parts[1]), extra * (less + 1)
        return {block // (less + 1) if block < long else extra + (block - long) // less}
    if parts[0] in ("norm", "lm_head"):
        return {num_stages - 1}
    return {0, num_stages - 1} if is_tied and name == "embedding.weight" else {0}
