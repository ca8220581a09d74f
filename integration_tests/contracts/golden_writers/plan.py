"""Golden files of contract `plan`: four plans for two tiny models, sliced parameter by parameter."""

from itertools import product
from pathlib import Path
from typing import Any

from golden_writers.document import write_json
from golden_writers.model import parameter_shapes

_UNTIED = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 4, "intermediate_size": 32, "max_position_embeddings": 32, "position_kind": "rotary",
    "norm_bias": False, "attention_bias": False, "attention_output_bias": False, "mlp_bias": False, "qk_norm": True,
    "gated_mlp": True, "tie_word_embeddings": False,
}  # fmt: skip
_TIED = _UNTIED | {
    "num_hidden_layers": 3, "num_key_value_heads": 4, "position_kind": "learned", "norm_bias": True,
    "attention_bias": True, "attention_output_bias": True, "mlp_bias": True, "qk_norm": False, "gated_mlp": False,
    "tie_word_embeddings": True,
}  # fmt: skip
_ROWS = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
_COLUMNS = ("attention.output", "mlp.down")
_AXES = ("data", "tensor", "pipeline", "context", "expert")  # as the contract lists them
_SLOWEST_FIRST = ("data", "pipeline", "expert", "context", "tensor")


def write(folder: Path) -> None:
    """Writes `parameters.json`, `parameters-tied.json` (name -> shape) and the plans."""
    untied, tied = parameter_shapes(_UNTIED), parameter_shapes(_TIED)
    write_json(folder / "parameters.json", untied)
    write_json(folder / "parameters-tied.json", tied)
    write_json(folder / "plan-world-1.json", _plan(untied, 5, {}, 1))
    write_json(folder / "plan-data-2.json", _plan(untied, 5, {"data": 2}, 2))
    write_json(
        folder / "plan-data-2-tensor-2-pipeline-2.json", _plan(untied, 5, {"data": 2, "tensor": 2, "pipeline": 2}, 4)
    )
    write_json(folder / "plan-tensor-2-pipeline-2-tied.json", _plan(tied, 3, {"tensor": 2, "pipeline": 2}, 2))


def _plan(shapes: dict[str, list[int]], layers: int, sizes: dict[str, int], micro_batches: int) -> dict[str, Any]:
    mesh = {axis: sizes.get(axis, 1) for axis in _AXES}
    places = [dict(zip(_SLOWEST_FIRST, at, strict=True)) for at in product(*(range(mesh[a]) for a in _SLOWEST_FIRST))]
    ranks = []
    for rank, place in enumerate(places):
        groups = {
            axis: [r for r, other in enumerate(places) if all(place[a] == other[a] for a in _AXES if a != axis)]
            for axis in _AXES
        }
        slices = {
            name: _ranges(name, shape, place["tensor"], mesh["tensor"])
            for name, shape in shapes.items()
            if place["pipeline"] in _stages(name, layers, mesh["pipeline"], "lm_head.weight" not in shapes)
        }
        coordinates = {axis: place[axis] for axis in _AXES}
        ranks.append({"rank": rank, "coordinates": coordinates, "groups": groups, "slices": slices})
    patterns: dict[str, Any] = {}
    for name in shapes:
        axis = _split_axis(name)
        placement = "replicated" if axis is None else {"axis": axis, "mesh_axis": "tensor"}
        patterns[".".join("*" if part.isdigit() else part for part in name.split("."))] = placement
    return {
        "format": "ms-parallel.plan",
        "version": 1,
        "world_size": len(places),
        "mesh": mesh,
        "engine": "spmd",
        "optimizer_sharding": False,
        "micro_batches": micro_batches,
        "recompute": "none",
        "parameters": [{"pattern": pattern, "placement": placement} for pattern, placement in patterns.items()],
        "ranks": ranks,
    }


def _split_axis(name: str) -> int | None:
    module, _, kind = name.rpartition(".")
    if module in ("embedding", "lm_head") or module.endswith(_ROWS):
        return 0
    return 1 if module.endswith(_COLUMNS) and kind == "weight" else None


def _ranges(name: str, shape: list[int], place: int, parts: int) -> list[list[int]]:
    ranges = [[0, extent] for extent in shape]
    axis = _split_axis(name)
    if axis is not None:
        size = shape[axis] // parts
        ranges[axis] = [place * size, (place + 1) * size]
    return ranges


def _stages(name: str, layers: int, stages: int, tied: bool) -> set[int]:
    if name.startswith("blocks."):
        sizes = [layers // stages + (stage < layers % stages) for stage in range(stages)]
        owners = [stage for stage, size in enumerate(sizes) for _ in range(size)]
        return {owners[int(name.split(".")[1])]}
    if name.startswith(("norm.", "lm_head.")):
        return {stages - 1}
    return {0, stages - 1} if tied and name == "embedding.weight" else {0}
