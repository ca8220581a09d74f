"""What is written about the first step that is not finite, so that it can be explained and run again.

`RUN/forensics/step-00000007/` (other ranks than 0: `step-00000007-rank-00001`):

| file | holds |
|---|---|
| `report.json` | format, version, step, samples, sample_ids, what the step gave, the diagnosis of the first micro-batch that is not finite, the saved values of the run (with its configuration), types of the tensors |
| `batch.npz` | this rank's part of the global batch, as the step took it |
| `state.npz` | all tensors of a checkpoint as they were before the step, which left them unchanged (rank 0 only) |
"""  # noqa: E501 - a table

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore
import numpy as np

from ms_trainloop.diagnosis import diagnose
from ms_trainloop.errors import ForensicsError
from ms_trainloop.step import StepResult, TrainStep

FORMAT, VERSION = "ms-trainloop.forensics", 1
_KEYS = ("input_ids", "labels", "position_ids", "segment_ids")
_LOG = logging.getLogger(__name__)


def write_record(
    folder: Path,
    step: TrainStep,
    batch: Mapping[str, np.ndarray[Any, Any]],
    result: StepResult,
    state: tuple[Mapping[str, np.ndarray[Any, Any]], Mapping[str, Any]],
    *,
    number: int,
    samples: tuple[int, int],
    is_state_written: bool = True,
) -> dict[str, Any]:
    """Writes the folder, whole or not at all, and returns the report.

    Args:
        folder: Where; an older one is replaced.
        step: The step, as it is after the skipped step.
        batch: This rank's part of the global batch.
        result: What the step gave.
        state: Tensors and values of the skipped step (resume.capture), which left the tensors as they were before.
        number: The step's number, from 1.
        samples: First and last global sample number of the batch.
        is_state_written: Whether the tensors are written too.
    """
    tensors, values = {**state[0], **{f"model.{name}": value for name, value in step.counters_before.items()}}, state[1]
    arrays = {key: np.ascontiguousarray(batch[key]) for key in _KEYS}
    report = {
        "format": FORMAT,
        "version": VERSION,
        "step": number,
        "samples": list(samples),
        "sample_ids": np.asarray(batch["sample_ids"]).tolist() if "sample_ids" in batch else None,
        "result": _as_json(result),
        "diagnosis": diagnose_batch(step, batch, result.loss_scale),
        "values": {**values, "loss_scale": result.loss_scale},
        "dtypes": {name: str(tensor.dtype) for name, tensor in tensors.items()},
    }
    staged = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    np.savez(staged / "batch.npz", **arrays)
    if is_state_written:
        np.savez(staged / "state.npz", **{name: _storable(tensor) for name, tensor in tensors.items()})
    with (staged / "report.json").open("w", encoding="utf-8") as file:
        json.dump(report, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    shutil.rmtree(folder, ignore_errors=True)
    staged.rename(folder)
    return report


def diagnose_batch(
    step: TrainStep, batch: Mapping[str, np.ndarray[Any, Any]], loss_scale: float
) -> dict[str, Any] | None:
    """Returns the diagnosis of the first micro-batch of a rank's batch that is not finite, or None if all are."""
    after = step.state.read_counters()
    step.state.write_counters(step.counters_before)
    try:
        return _diagnose_parts(step, batch, loss_scale / batch["labels"].size)
    finally:
        step.state.write_counters(after)


def _diagnose_parts(step: TrainStep, batch: Mapping[str, np.ndarray[Any, Any]], seed: float) -> dict[str, Any] | None:
    rows = step.config.micro_batch_size
    for number in range(step.accumulation):
        part = {key: batch[key][number * rows : (number + 1) * rows] for key in _KEYS}
        found = diagnose(step.model, step.state, part, seed=seed)
        if found["weights"] or found["forward"] or None in found["gradient_norms"].values():
            found["micro_batch"] = number
            ids = batch.get("sample_ids")
            found["sample_ids"] = None if ids is None else np.asarray(ids)[number * rows :][:rows].tolist()
            return found
    return None


def describe(diagnosis: Mapping[str, Any] | None) -> str:
    """Returns the diagnosis in one sentence."""
    if diagnosis is None:
        return (
            "no micro-batch is not finite when computed again operator by operator (a rounding apart, or other ranks)"
        )
    if diagnosis["weights"]:
        return f"weights that are not finite: {', '.join(diagnosis['weights'])}"
    if forward := diagnosis["forward"]:
        place = f"{Path(forward['file']).name}:{forward['line']}"
        return f"first value that is not finite: cell {forward['cell']}, {place} `{forward['source']}`"
    if backward := diagnosis["backward"]:
        return f"forward is finite; the gradient is not from cell {backward['cell']} ({backward['kind']}) on back"
    broken = [name for name, norm in diagnosis["gradient_norms"].items() if norm is None]
    return f"forward is finite; the gradient of {broken[-1] if broken else 'no single parameter'} is not"


def read_record(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Returns report, batch and tensors of a record.

    Raises:
        ForensicsError: A file is missing, or it is of another format or version.
    """
    missing = [name for name in ("report.json", "batch.npz", "state.npz") if not (folder / name).is_file()]
    if missing:
        raise ForensicsError(f"{folder}: {', '.join(missing)} missing; give a folder RUN/forensics/step-NNNNNNNN")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    found = (report.get("format"), report.get("version"))
    if found != (FORMAT, VERSION):
        raise ForensicsError(f"{folder}: found format {found[0]}, version {found[1]}; expected {FORMAT}, {VERSION}")
    with np.load(folder / "batch.npz") as file:
        batch = {name: file[name] for name in file.files}
    with np.load(folder / "state.npz") as file:
        tensors = {name: _restored(file[name], report["dtypes"][name]) for name in file.files}
    return report, batch, tensors


def _storable(tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """npz files lose numpy types that are not its own: bfloat16 is kept as its words."""
    return tensor.view(np.uint16) if str(tensor.dtype) == "bfloat16" else tensor


def _restored(array: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    return array.view(mindspore.dtype_to_nptype(mindspore.bfloat16)) if dtype == "bfloat16" else array


def _as_json(result: StepResult) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in result._asdict().items()
    }
