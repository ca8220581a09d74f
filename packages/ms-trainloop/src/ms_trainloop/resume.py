"""What a run saves and how it goes on from it: everything is compared before anything is applied.

| field of section `train` | when resuming |
|---|---|
| those in FREE (how often to log, evaluate, save ...) | may change: the trained numbers do not depend on them |
| those in ROUNDING, and the number of ranks | may change, with a logged warning: the same numbers up to rounding |
| every other one (steps, rates, batch size, seed ...) | refused unless named in allow_changes; then logged |

The tokenizer's fingerprint may never change. The caller's own `config` is stored and given back, not compared.
"""

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Protocol

import mindspore
import numpy as np

from ms_trainloop.config import TrainConfig
from ms_trainloop.errors import ResumeError
from ms_trainloop.model_state import write
from ms_trainloop.step import StepResult, TrainStep

VERSION = 2
"""Of the values under `trainloop`; 0.1.0 saved none."""
FREE = frozenset(
    (
        "log_every",
        "evaluate_every",
        "evaluation_batches",
        "save_every",
        "sample_every",
        "tensorboard",
        "evaluate_ema",
        "max_skipped_steps",
        "max_rollbacks",
        "forensics",
        "max_minutes",
        "compile_cache",
        "wandb",
        "wandb_project",
        "peak_tflops",
        "preflight",
        "allow_changes",
    )
)
"""Fields that may change without a word."""
ROUNDING = frozenset(("micro_batch_size", "mode"))
"""Fields that may change with a warning."""
_LOG = logging.getLogger(__name__)


class SavedState(Protocol):
    """What `load` of a checkpointer gives."""

    @property
    def step(self) -> int:
        """Steps done."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Arrays by name."""

    @property
    def values(self) -> Mapping[str, Any]:
        """JSON values."""


class Checkpointer(Protocol):
    """Where a run is saved; ms-ckpt's fits, and so does anything else with these two methods."""

    def save(self, step: int, tensors: dict[str, np.ndarray[Any, Any]], values: dict[str, Any]) -> object:
        """Stores copies of arrays and JSON values under a step."""

    def load(self) -> SavedState | None:
        """Returns the newest valid state, or None if there is none."""


@dataclass(kw_only=True)
class Counters:
    """Where a run stands."""

    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped_steps: int = 0
    skipped_in_row: int = 0
    window_loss: float = 0.0
    """Sum of losses since the last line of metrics; saved, so that a resumed run writes the same line."""
    window_tokens: int = 0
    rollbacks: int = 0
    spike_losses: list[float] = field(default_factory=list)
    """What the spike guard measures against."""

    def become(self, other: "Counters") -> None:
        """Takes over all values of another one."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    def add(self, result: StepResult, samples: int) -> None:
        """Counts one step over `samples` rows."""
        self.step += 1
        self.samples += samples
        self.window_loss += result.loss_sum
        self.window_tokens += result.tokens
        if result.is_applied:
            self.tokens += result.tokens
            self.skipped_in_row = 0
        else:
            self.skipped_steps += 1
            self.skipped_in_row += 1


def capture(
    step: TrainStep,
    counters: Counters,
    *,
    epoch: int,
    tokenizer_fingerprint: str | None,
    config: Mapping[str, Any] | None,
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Returns copies of all tensors and the JSON values of contract `checkpoint`."""
    tensors = {name: np.array(parameter.asnumpy()) for name, parameter in _tensors_of(step).items()}
    finite_loss = counters.window_loss if math.isfinite(counters.window_loss) else None
    values = {
        "samples_consumed": counters.samples,
        "epoch": epoch,
        "loss_scale": float(step.loss_scale.asnumpy()),
        "random_state": {"seed": step.config.seed},
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "config": _as_json(config or {}),
        "trainloop": {
            "version": VERSION,
            "train": _as_json(asdict(step.config)),
            "world_size": step.world_size,
            "updates": int(step.updates.asnumpy()),
            "good_steps": int(step.good_steps.asnumpy()),
            "skipped_in_row": counters.skipped_in_row,
            "tokens": counters.tokens,
            "skipped_steps": counters.skipped_steps,
            "window_loss": finite_loss,
            "window_tokens": counters.window_tokens,
            "rollbacks": counters.rollbacks,
            "spike_losses": list(counters.spike_losses),
        },
    }
    return tensors, values


def restore(step: TrainStep, state: SavedState, *, tokenizer_fingerprint: str | None) -> Counters:
    """Applies a saved state to the step and returns where the run stands.

    Raises:
        ResumeError: Names, shapes, dtypes, configuration, tokenizer or values differ; all differences are listed,
            and nothing was applied.
    """
    expected = _tensors_of(step)
    values = state.values
    problems = [*_compare_tensors(expected, state.tensors), *_missing_values(values)]
    if not problems:
        problems = _compare_config(values["trainloop"], step)
        if values["tokenizer_fingerprint"] != tokenizer_fingerprint:
            problems.append(
                f"tokenizer_fingerprint: saved {values['tokenizer_fingerprint']}, now {tokenizer_fingerprint};"
                " a model cannot go on with another tokenizer"
            )
    if problems:
        raise ResumeError(f"saved state of step {state.step} does not fit this run: " + "; ".join(problems))
    for name, parameter in expected.items():
        write(parameter, _as_array(state.tensors[name]))
    step.state.refresh_copies()
    own = values["trainloop"]
    for counter, value in (
        (step.step, state.step),
        (step.updates, own["updates"]),
        (step.good_steps, own["good_steps"]),
        (step.skipped_in_row, own["skipped_in_row"]),
    ):
        write(counter, np.array(value, np.int32))
    write(step.loss_scale, np.array(values["loss_scale"], np.float32))
    return Counters(
        step=state.step,
        samples=values["samples_consumed"],
        tokens=own["tokens"],
        skipped_steps=own["skipped_steps"],
        skipped_in_row=own["skipped_in_row"],
        window_loss=math.nan if own["window_loss"] is None else own["window_loss"],
        window_tokens=own["window_tokens"],
        rollbacks=own["rollbacks"],
        spike_losses=list(own["spike_losses"]),
    )


def _tensors_of(step: TrainStep) -> dict[str, Any]:
    tensors = {f"model.{name}": parameter for name, parameter in step.named_parameters.items()}
    for slot, states in step.optimizer.slots.items():
        tensors |= {f"optimizer.{slot}.{name}": state for name, state in states.items()}
    return tensors


def _compare_tensors(expected: Mapping[str, Any], found: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
    problems = [f"{name}: missing" for name in expected if name not in found]
    problems += [f"{name}: unexpected" for name in found if name not in expected]
    for name, parameter in expected.items():
        if name in found:
            shape, dtype = tuple(parameter.shape), np.dtype(mindspore.dtype_to_nptype(parameter.dtype))
            array = _as_array(found[name])
            if tuple(array.shape) != shape:
                problems.append(f"{name}: saved shape {list(array.shape)}, the model has {list(shape)}")
            if array.dtype != dtype:
                problems.append(f"{name}: saved {array.dtype}, the model has {dtype}")
    return problems


def _as_array(tensor: Any) -> np.ndarray[Any, Any]:
    """A saved tensor as an array; bfloat16, which numpy lacks, may come as an object with its 16-bit `words`."""
    if isinstance(tensor, np.ndarray) or getattr(tensor, "dtype", None) != "BF16":
        return np.asarray(tensor)
    return np.asarray(tensor.words).view(mindspore.dtype_to_nptype(mindspore.bfloat16))


def _missing_values(values: Mapping[str, Any]) -> list[str]:
    counts = ("updates", "good_steps", "skipped_in_row", "tokens", "skipped_steps", "window_tokens", "rollbacks")
    own = values.get("trainloop")
    if not isinstance(own, Mapping):
        return ["values.trainloop: missing; the state was not saved by a training run of ms-trainloop"]
    if own.get("version") != VERSION:
        return [
            f"values.trainloop.version: found {own.get('version')}, expected {VERSION}; another version of ms-trainloop"
            " saved it: finish the run with that one, or start a new run from its weights"
        ]
    problems = [f"values.trainloop.{key}: found {own.get(key)!r}" for key in counts if type(own.get(key)) is not int]
    if type(values.get("samples_consumed")) is not int:
        problems.append(f"values.samples_consumed: found {values.get('samples_consumed')!r}, expected an integer")
    if not isinstance(values.get("loss_scale"), float):
        problems.append(f"values.loss_scale: found {values.get('loss_scale')!r}, expected a number")
    problems += [f"values.{key}: missing" for key in ("tokenizer_fingerprint",) if key not in values]
    problems += [
        f"values.trainloop.{key}: missing"
        for key in ("train", "window_loss", "world_size", "spike_losses")
        if key not in own
    ]
    return problems


def _compare_config(own: Mapping[str, Any], step: TrainStep) -> list[str]:
    saved, now = own["train"], _as_json(asdict(step.config))
    defaults = {f.name: _as_json(f.default) for f in fields(TrainConfig) if f.default is not MISSING}
    problems = [f"train.{name}: saved by a version that had it, unknown here" for name in saved if name not in now]
    for name, value in now.items():
        before = saved.get(name, defaults.get(name))
        if before == value or name in FREE:
            continue
        change = f"train.{name}: saved {before!r}, now {value!r}"
        if name in ROUNDING:
            _LOG.warning("%s; the same numbers up to rounding, not to the bit", change)
        elif name in step.config.allow_changes:
            _LOG.warning("%s; allowed by train.allow_changes", change)
        else:
            problems.append(f"{change}; set it back, or name it in train.allow_changes if the change is meant")
    if own["world_size"] != step.world_size:
        _LOG.warning("ranks: saved %s, now %s; the same numbers up to rounding", own["world_size"], step.world_size)
    return problems


def _as_json(value: Any) -> Any:
    """The value as JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(value, allow_nan=False))
