"""How much memory a training step needs: what is certain by formula, and what the device has."""

from pathlib import Path
from typing import Any

import mindspore

from ms_trainloop.step import TrainStep

_BYTES = {
    "Float32": 4,
    "Float16": 2,
    "BFloat16": 2,
    "Int32": 4,
    "UInt32": 4,
    "Float64": 8,
    "Int64": 8,
    "UInt64": 8,
    "Bool": 1,
}


def estimate_memory(step: TrainStep, *, seq_length: int, vocab_size: int | None) -> dict[str, int]:
    """Returns bytes by use: `weights` (with half copies), `optimizer`, `gradients` and `logits`, and their `total`.

    weights and optimizer count every parameter in its own type; gradients are float32, twice where micro-batches are
    summed; logits are three float32 arrays [rows, tokens, vocab] (logits, softmax, gradient), 0 without `vocab_size`.
    Activations between them depend on the model and are not counted: the total is a lower bound.
    """
    state = step.state
    weights = _size([*state.saved.values(), *state.copies.values()])
    optimizer = _size([each for states in step.optimizer.slots.values() for each in states.values()])
    gradients = sum(4 * _count(parameter) for parameter in state.trained.values()) * min(step.accumulation, 2)
    logits = 3 * 4 * step.config.micro_batch_size * seq_length * (vocab_size or 0)
    found = {"weights": weights, "optimizer": optimizer, "gradients": gradients, "logits": logits}
    return {**found, "total": sum(found.values())}


def available_memory(step: TrainStep) -> int | None:
    """Returns the bytes a step may take: the device's, or on CPU the free ones and what weights already hold."""
    if mindspore.get_context("device_target") != "CPU":
        total: Any = mindspore.runtime.get_device_properties(0).total_memory
        return int(total)
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines() if Path("/proc/meminfo").exists() else []
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    held = _size([*step.state.saved.values(), *step.state.copies.values()])
    held += _size([each for states in step.optimizer.slots.values() for each in states.values()])
    return free[0] + held if free else None


def format_bytes(count: int) -> str:
    """Returns `1.50 GB` (10^9), `12.3 MB` or `456 kB`."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _count(parameter: Any) -> int:
    count = 1
    for size in parameter.shape:
        count *= size
    return count


def _size(parameters: list[Any]) -> int:
    return sum(_count(parameter) * _BYTES[str(parameter.dtype)] for parameter in parameters)
