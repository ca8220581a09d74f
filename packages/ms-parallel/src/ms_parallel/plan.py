"""The plan of contract `plan`: a model's parameters on a mesh of ranks, made and checked."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ms_parallel.config import ENGINES, RECOMPUTE, ParallelConfig
from ms_parallel.errors import PlanError
from ms_parallel.mesh import AXES, coordinates_of, groups_of, nearest_meshes, spell
from ms_parallel.placement import RULES, Placement, matches, placement_of, slices_of, stages_of

FORMAT = "ms-parallel.plan"


def plan(
    config: ParallelConfig, parameters: Mapping[str, Sequence[int]], model: Mapping[str, Any], world_size: int
) -> dict[str, Any]:
    """The plan document.

    Args:
        config: the wanted mesh; `data` 0 takes the ranks that the other axes leave.
        parameters: shape of every parameter by its name of contract `model`.
        model: the keys of the model's config.json; `num_attention_heads`, `num_key_value_heads`,
            `intermediate_size`, `vocab_size`, `num_hidden_layers` and `num_experts` are looked at where given.
        world_size: number of ranks.

    Raises:
        PlanError: every violation, and the nearest valid meshes for this world.
    """
    if world_size < 1:
        raise PlanError(f"world size: expected at least 1, found {world_size}")
    mesh = {axis: int(getattr(config, axis)) for axis in AXES}
    others = mesh["tensor"] * mesh["pipeline"] * mesh["context"] * mesh["expert"]
    violations = _misfits(parameters, model)
    if mesh["data"] == 0:
        mesh["data"] = max(1, world_size // others)
    if mesh["data"] * others != world_size:
        violations.append(f"mesh {spell(mesh)} is {mesh['data'] * others} ranks, but the world has {world_size}")
    violations += mesh_violations(mesh, parameters, model)
    if violations:
        raise PlanError(_explain(violations, mesh, parameters, model, world_size))
    rules = [(rule, placement) for rule, placement in RULES.items() if any(matches(rule, name) for name in parameters)]
    return {
        "format": FORMAT,
        "version": 1,
        "world_size": world_size,
        "mesh": mesh,
        "engine": config.engine,
        "optimizer_sharding": config.optimizer_sharding,
        "micro_batches": config.micro_batches,
        "recompute": config.recompute,
        "parameters": [{"pattern": pattern, "placement": placement} for pattern, placement in rules],
        "ranks": [_rank(rank, mesh, parameters, rules) for rank in range(world_size)],
    }


def mesh_violations(
    mesh: Mapping[str, int], parameters: Mapping[str, Sequence[int]], model: Mapping[str, Any]
) -> list[str]:
    """Why a model does not lie on a mesh, in words; empty if it does."""
    tensor, found = mesh["tensor"], []
    heads = model.get("num_attention_heads")
    divisible = {
        "num_attention_heads": heads,
        "num_key_value_heads": model.get("num_key_value_heads") or heads,
        "intermediate_size": model.get("intermediate_size"),
        "vocab_size": model.get("vocab_size"),
    }
    for key, size in divisible.items():
        if size is not None and size % tensor != 0:
            found.append(f"{key} {size} is not divisible by tensor {tensor}")
    blocks, experts = _num_blocks(parameters), model.get("num_experts")
    if mesh["pipeline"] > max(1, blocks):
        found.append(f"{blocks} blocks cannot fill pipeline {mesh['pipeline']}")
    if mesh["expert"] > 1 and not experts:
        found.append(f"expert {mesh['expert']}: the model has no experts")
    elif experts and experts % mesh["expert"] != 0:
        found.append(f"num_experts {experts} is not divisible by expert {mesh['expert']}")
    for pattern, placement in RULES.items():
        if isinstance(placement, str):
            continue
        axis, mesh_axis = int(placement["axis"]), str(placement["mesh_axis"])
        sizes = {shape[axis] if axis < len(shape) else 0 for n, shape in parameters.items() if matches(pattern, n)}
        for size in sorted(size for size in sizes if size % mesh[mesh_axis] != 0):
            found.append(f"{pattern}: axis {axis} of {size} is not divisible by {mesh_axis} {mesh[mesh_axis]}")
    return found


def check_plan(document: Mapping[str, Any]) -> None:
    """Raises PlanError with everything that is wrong in a plan: format, numbering, groups, gaps or overlaps."""
    found = (document.get("format"), document.get("version"))
    if found != (FORMAT, 1):
        raise PlanError(f"format {found[0]!r} version {found[1]!r}; this reader knows {FORMAT!r} version 1")
    try:
        violations = _contradictions(document)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PlanError(f"broken plan: {type(error).__name__}: {error}") from error
    if violations:
        raise PlanError("\n  ".join([f"{len(violations)} contradictions in the plan:", *violations]))


def to_json(document: Mapping[str, Any]) -> str:
    """The document as strict JSON text."""
    return json.dumps(document, allow_nan=False, indent=1) + "\n"


def _rank(
    rank: int, mesh: Mapping[str, int], parameters: Mapping[str, Sequence[int]], rules: Sequence[tuple[str, Placement]]
) -> dict[str, Any]:
    place, blocks, is_tied = coordinates_of(rank, mesh), _num_blocks(parameters), "lm_head.weight" not in parameters
    slices = {}
    for name, shape in parameters.items():
        placement = placement_of(name, rules)
        if placement is not None and place["pipeline"] in stages_of(name, blocks, mesh["pipeline"], is_tied=is_tied):
            slices[name] = slices_of(name, shape, placement, place, mesh)
    return {"rank": rank, "coordinates": place, "groups": groups_of(rank, mesh), "slices": slices}


def _misfits(parameters: Mapping[str, Sequence[int]], model: Mapping[str, Any]) -> list[str]:
    """What no mesh can mend: unknown names, another number of blocks than the config says."""
    found = [f"{name}: no pattern covers it" for name in parameters if placement_of(name, RULES.items()) is None]
    blocks, said = _num_blocks(parameters), model.get("num_hidden_layers")
    if said is not None and said != blocks:
        found.append(f"num_hidden_layers {said}, but the parameters have {blocks} blocks")
    return found


def _num_blocks(parameters: Mapping[str, Sequence[int]]) -> int:
    numbers = {name.split(".")[1] for name in parameters if name.startswith("blocks.")}
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _explain(
    violations: list[str],
    mesh: Mapping[str, int],
    parameters: Mapping[str, Sequence[int]],
    model: Mapping[str, Any],
    world_size: int,
) -> str:
    lines = [f"{len(violations)} violations for {spell(mesh)} on {world_size} ranks:", *violations]
    near = nearest_meshes(
        mesh,
        world_size,
        lambda other: not mesh_violations(other, parameters, model) and (other["context"] == 1 or mesh["context"] > 1),
    )
    if near:
        lines.append(f"nearest valid meshes for {world_size} ranks: {'; '.join(map(spell, near))}")
    else:
        lines.append(f"no mesh of {world_size} ranks is valid for this model")
    return "\n  ".join(lines)


def _contradictions(document: Mapping[str, Any]) -> list[str]:
    keys = {"format", "version", "world_size", "mesh", "engine", "optimizer_sharding", "micro_batches", "recompute"}
    keys |= {"parameters", "ranks"}
    found = [f"{key}: unknown key" for key in sorted(document.keys() - keys)]
    found += [f"{key}: missing" for key in sorted(keys - document.keys())]
    mesh, world_size, ranks = document["mesh"], document["world_size"], document["ranks"]
    if sorted(mesh) != sorted(AXES) or not all(type(size) is int and size >= 1 for size in mesh.values()):
        return [*found, f"mesh: expected the sizes of {', '.join(AXES)}, found {mesh}"]
    product = mesh["data"] * mesh["tensor"] * mesh["pipeline"] * mesh["context"] * mesh["expert"]
    if not (product == world_size == len(ranks)):
        return [*found, f"mesh of {product} ranks, world_size {world_size}, {len(ranks)} entries in ranks"]
    for key, choices in {"engine": ENGINES, "recompute": RECOMPUTE}.items():
        if document[key] not in choices:
            found.append(f"{key}: expected {' or '.join(choices)}, found {document[key]!r}")
    rules = [(entry["pattern"], entry["placement"]) for entry in document["parameters"]]
    shapes: dict[str, list[int]] = {}
    for entry in ranks:
        for name, ranges in entry["slices"].items():
            shape = shapes.setdefault(name, [0] * len(ranges))
            shapes[name] = [max(extent, end) for extent, (_, end) in zip(shape, ranges, strict=True)]
    for name in shapes:
        if placement_of(name, rules) is None:
            found.append(f"{name}: no pattern covers it")
    for number, entry in enumerate(ranks if not found else []):
        expected = _rank(number, mesh, shapes, rules)
        found += [
            f"rank {number}: {key} are {entry[key]}, expected {expected[key]}"
            for key in ("rank", "coordinates", "groups")
            if entry[key] != expected[key]
        ]
        for name in sorted(entry["slices"].keys() | expected["slices"].keys()):
            have, want = entry["slices"].get(name), expected["slices"].get(name)
            if have != want:
                found.append(f"rank {number}: {name}: slice {have or 'absent'}, expected {want or 'absent'}")
    return found
