"""Running a recorded step again: the same batch, weights, states, scale and rate."""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ms_trainloop.config import TrainConfig, from_mapping
from ms_trainloop.errors import ForensicsError
from ms_trainloop.forensics import describe, read_record
from ms_trainloop.resume import restore
from ms_trainloop.step import StepResult, TrainStep


@dataclass(frozen=True, kw_only=True)
class _State:
    step: int
    tensors: dict[str, Any]
    values: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a recorded step gave then and now."""

    step: int
    """Its number, from 1."""
    recorded: dict[str, Any]
    """Fields of StepResult; None where not finite."""
    result: StepResult
    """The same step run again."""
    differences: list[str]
    """Fields that differ, with both values; empty if the step was reproduced to the bit."""
    explanation: str
    """The recorded diagnosis in one sentence."""


def replay(folder: Path, step: TrainStep) -> Replay:
    """Restores the recorded state into `step` and runs the recorded batch.

    Args:
        folder: `RUN/forensics/step-NNNNNNNN`.
        step: A TrainStep of the same model and configuration, for one process.

    Raises:
        ForensicsError: The record cannot be read.
        ResumeError: The model or the configuration is another one.
    """
    report, batch, tensors = read_record(folder)
    values = report["values"]
    state = _State(step=report["step"] - 1, tensors=tensors, values=values)
    restore(step, state, tokenizer_fingerprint=values["tokenizer_fingerprint"])
    result = step.run(batch)
    now = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in result._asdict().items()}
    differences = [
        f"{name}: recorded {value}, now {now[name]}" for name, value in report["result"].items() if now[name] != value
    ]
    return Replay(
        step=report["step"],
        recorded=report["result"],
        result=result,
        differences=differences,
        explanation=describe(report["diagnosis"]),
    )


def replay_with(folder: Path, maker: str) -> Replay:
    """Replays a record with a model made for it.

    Args:
        folder: `RUN/forensics/step-NNNNNNNN`.
        maker: `package.module:function` or `file.py:function`. The function is called with the configuration that
            the caller of `train` had given (a dict) and returns the model and its parameters by name (or None for
            MindSpore's names).

    Raises:
        ForensicsError: No such function, or the record cannot be read.
        ResumeError: The model is another one.
    """
    report, _, _ = read_record(folder)
    own = report["values"]["trainloop"]
    config = from_mapping(TrainConfig, own["train"], "train")
    if own["world_size"] > 1:  # the record holds one rank's part; its gradient is that part's
        config = replace(
            config,
            global_batch_size=config.global_batch_size // own["world_size"],
            allow_changes=(*config.allow_changes, "global_batch_size"),
        )
    model, parameters = _find(maker)(report["values"]["config"])
    return replay(folder, TrainStep(model, config, parameters=parameters))


def _find(maker: str) -> Callable[[dict[str, Any]], tuple[Any, Any]]:
    place, colon, name = maker.rpartition(":")
    if not colon:
        raise ForensicsError(f"--model {maker}: expected package.module:function or file.py:function")
    try:
        if place.endswith(".py"):
            path = Path(place).resolve()
            sys.path.insert(0, str(path.parent))  # so that the file's neighbours can be imported, as in a script
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        function: Callable[[dict[str, Any]], tuple[Any, Any]] = getattr(module, name)
    except (ImportError, FileNotFoundError, AttributeError) as error:
        raise ForensicsError(f"--model {maker}: {error}") from error
    return function
