"""Which checkpoints may go."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ms_ckpt.config import CheckpointConfig


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A valid checkpoint, as retention sees it."""

    step: int
    time: float
    """When it was committed, in seconds (the modification time of COMMIT)."""
    metric: float | None = None
    """The value at `best_metric`, or None."""


def metric_of(values: Any, path: str) -> float | None:
    """The number at a dotted path of the values; None if there is none, or it is not finite."""
    for key in path.split(".") if path else [None]:
        if not isinstance(values, dict) or key not in values:
            return None
        values = values[key]
    is_number = type(values) in (int, float) and math.isfinite(values)
    return float(values) if is_number else None


def superfluous_steps(saved: Sequence[Saved], config: CheckpointConfig, just_saved: int | None = None) -> list[int]:
    """The steps that the configuration no longer keeps, in ascending order.

    `saved` are valid checkpoints only, whichever run wrote them: a damaged one never counts towards `keep_last`, so the
    last valid one always stays. `just_saved` stays too, even when newer steps exist.
    """
    if config.keep_last == 0:
        return []
    in_order = sorted(saved, key=lambda one: one.step)
    kept = {one.step for one in in_order[-config.keep_last :]} | {just_saved}
    if config.keep_every:
        kept |= {one.step for one in in_order if one.step % config.keep_every == 0}
    if config.keep_every_minutes:
        kept |= _kept_by_time(in_order, config.keep_every_minutes * 60)
    if config.keep_best:
        sign = 1 if config.best_is == "lowest" else -1
        rated = [(sign * one.metric, one.step) for one in in_order if one.metric is not None]
        kept |= {step for _, step in sorted(rated)[: config.keep_best]}
    return [one.step for one in in_order if one.step not in kept]


def _kept_by_time(in_order: Sequence[Saved], seconds: float) -> set[int]:
    """The first, and each that is old enough after the one kept before; a clock that went back keeps, never deletes."""
    kept: set[int] = set()
    last = -math.inf
    for one in in_order:
        if not last <= one.time < last + seconds:
            kept.add(one.step)
            last = one.time
    return kept
