"""MindSpore's strategy files: how semi-automatic and automatic parallel training splits each parameter.

A parameter's devices stand in a matrix, `dev_matrix`; the entry of an axis in `tensor_map` counts the matrix's axes
from its last (0) and says which one splits it (-1: none; a list: several, the first slowest). Optimizer sharding splits
the first axis further, over matrix axes that nothing else uses, from the last one on. Files are protocol buffers, or
JSON with the same names; one file for each pipeline stage, or one merged file with `STAGE-` before each name.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_ckpt.errors import InvalidCheckpointError, ValuesError
from ms_ckpt.protobuf import fields, numbers, place, text


@dataclass(frozen=True, kw_only=True)
class Split:
    """How one parameter is split among the devices of its stage."""

    device_matrix: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]
    """For each axis of the tensor, the axes of the device matrix (from its first, 0) that split it, slowest first."""
    optimizer_shards: int
    """Into how many parts the first axis is split further; 1 for none."""

    @property
    def num_devices(self) -> int:
        """Devices of the stage."""
        return math.prod(self.device_matrix)

    def block(self, device: int, local_shape: Sequence[int], name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offset and whole shape of the block of `local_shape` that a device of the stage holds.

        Raises ValuesError, naming the parameter, if the split does not fit the shape.
        """
        if len(local_shape) != len(self.axes):
            raise ValuesError(f"{name}: {len(local_shape)} axes, but its strategy splits {len(self.axes)}")
        coordinates = _coordinates(device, self.device_matrix)
        offset, whole = [], []
        for axis, (size, splitters) in enumerate(zip(local_shape, self.axes, strict=True)):
            part, parts = _mixed(coordinates, self.device_matrix, splitters)
            if axis == 0 and self.optimizer_shards > 1:
                inner, shards = self._optimizer_part(coordinates, name), self.optimizer_shards
                part, parts = part * shards + inner, parts * shards
            offset.append(part * size)
            whole.append(parts * size)
        return tuple(offset), tuple(whole)

    def _optimizer_part(self, coordinates: Sequence[int], name: str) -> int:
        """Which of the optimizer's shards a device holds."""
        used = {axis for splitters in self.axes for axis in splitters}
        free = [axis for axis, size in enumerate(self.device_matrix) if axis not in used and size > 1]
        part, weight, left = 0, 1, self.optimizer_shards
        for axis in reversed(free):
            if left == 1:
                break
            size = min(self.device_matrix[axis], left)
            if self.device_matrix[axis] % size or left % size:
                break
            part += weight * (coordinates[axis] % size)
            weight *= size
            left //= size
        if left != 1:
            raise ValuesError(
                f"{name}: {self.optimizer_shards} optimizer shards do not fit devices {self.device_matrix}"
            )
        return part


Strategy = dict[int, dict[str, Split]]
"""The splits by parameter, for each pipeline stage."""


def read_strategy(path: Path) -> Strategy:
    """The strategy of a file, or of all files of a folder (one a stage).

    Raises:
        InvalidCheckpointError: not a strategy file; the message names it and what is wrong.
        ValuesError: it uses what is not understood here (uneven or field splits), by parameter.
    """
    paths = sorted(entry for entry in path.iterdir() if entry.is_file()) if path.is_dir() else [path]
    stages: Strategy = {}
    for file in paths:
        try:
            own_stage, layouts = _read_json(file) if file.suffix == ".json" else _read_protobuf(file)
        except OSError as error:
            raise InvalidCheckpointError(f"{file}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise InvalidCheckpointError(f"{file}: not a strategy file: {type(error).__name__}: {error}") from error
        for full_name, layout in layouts.items():
            stage, dash, name = full_name.partition("-")
            is_merged = bool(dash) and stage.isdecimal()
            split = _split(layout, f"{file}: {full_name}")
            stages.setdefault(int(stage) if is_merged else own_stage, {})[name if is_merged else full_name] = split
    if not stages:
        raise InvalidCheckpointError(f"{path}: holds no layout of any parameter")
    if sorted(stages) != list(range(len(stages))):
        raise InvalidCheckpointError(f"{path}: holds the pipeline stages {sorted(stages)}; some are missing")
    return stages


def _split(layout: dict[str, Any], where: str) -> Split:
    matrix = tuple(int(size) for size in layout["dev_matrix"])
    if any(layout.get("param_split_shape", ())) or layout.get("field"):
        raise ValuesError(f"{where}: uneven or field splits are not understood here")
    axes = []
    for entry in layout["tensor_map"]:
        splitters = tuple(
            len(matrix) - 1 - axis for axis in (entry if isinstance(entry, list) else [entry]) if axis != -1
        )
        if any(not 0 <= axis < len(matrix) for axis in splitters):
            raise InvalidCheckpointError(f"{where}: tensor_map {layout['tensor_map']} leaves dev_matrix {list(matrix)}")
        axes.append(splitters)
    shards = int(layout.get("opt_weight_shard_size") or 0)
    if not int(layout.get("opt_weight_shard_step") or 0):
        shards = 0
    if shards == -1:
        shards = math.prod(matrix) // math.prod(matrix[axis] for splitters in axes for axis in splitters)
    return Split(device_matrix=matrix, axes=tuple(axes), optimizer_shards=max(1, shards))


def _read_json(file: Path) -> tuple[int, dict[str, Any]]:
    document = json.loads(file.read_text(encoding="utf-8"))
    items = document.get("parallel_strategy_item") or {}
    stage = int(next(iter(items.values()))["stage"]) if items else 0
    return stage, dict(document["parallel_layout_item"])


def _read_protobuf(file: Path) -> tuple[int, dict[str, Any]]:
    data = memoryview(file.read_bytes())
    stage: int | None = None
    layouts: dict[str, Any] = {}
    for number, value in fields(data):
        if number == 2 and stage is None:
            stage = _stage(data, place(value))
        elif number == 3:
            name, layout = "", {}
            for inner, found in fields(data, place(value)):
                if inner == 1:
                    name = text(data, found)
                elif inner == 2:
                    layout = _layout(data, place(found))
            if not name or "dev_matrix" not in layout:
                raise ValueError("a layout without a name or a device matrix")
            layouts[name] = layout
        elif number > 5:
            raise ValueError(f"unknown field {number}")
    return stage or 0, layouts


def _stage(data: memoryview, item: slice) -> int:
    for number, value in fields(data, item):
        if number == 2:
            for inner, found in fields(data, place(value)):
                if inner == 1 and isinstance(found, int):
                    return found
    return 0


def _layout(data: memoryview, where: slice) -> dict[str, Any]:
    layout: dict[str, Any] = {}
    maps: list[list[int]] = []
    for number, value in fields(data, where):
        if number == 1:
            layout.setdefault("dev_matrix", _dims(data, place(value)))
        elif number == 2:
            maps.append(_dims(data, place(value)))
        elif number == 3:
            layout["param_split_shape"] = _dims(data, place(value))
        elif number in (5, 6, 7) and isinstance(value, int):
            layout[{5: "field", 6: "opt_weight_shard_step", 7: "opt_weight_shard_size"}[number]] = _signed32(value)
    # one message holds an entry an axis; several hold a list of device axes each
    layout["tensor_map"] = maps[0] if len(maps) == 1 else [found for found in maps if found]
    return layout


def _dims(data: memoryview, where: slice) -> list[int]:
    return [number for key, value in fields(data, where) if key == 1 for number in numbers(data, value)]


def _signed32(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _coordinates(device: int, matrix: Sequence[int]) -> list[int]:
    found: list[int] = []
    for size in reversed(matrix):
        device, coordinate = divmod(device, size)
        found.insert(0, coordinate)
    return found


def _mixed(coordinates: Sequence[int], matrix: Sequence[int], axes: Sequence[int]) -> tuple[int, int]:
    """Which part of how many a device's coordinates along some axes make, the first axis slowest."""
    part, parts = 0, 1
    for axis in axes:
        part, parts = part * matrix[axis] + coordinates[axis], parts * matrix[axis]
    return part, parts
