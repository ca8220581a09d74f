"""The whole preflight: ten steps on one repeated batch, looked at closely and then undone to the bit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_trainloop.errors import PreflightError
from ms_trainloop.forensics import describe, diagnose_batch
from ms_trainloop.memory import available_memory, estimate_memory, format_bytes
from ms_trainloop.model_state import write
from ms_trainloop.preflight import Finding, check_batch, check_first_loss
from ms_trainloop.step import StepResult, TrainStep

_STEPS = 10
_LEAST_FALL = 0.01
"""Share of the first loss; a batch repeated ten times at the peak rate falls by far more in a run that learns."""


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """What the rehearsal found."""

    findings: list[Finding]
    """What is wrong or looks wrong; empty if nothing."""
    figures: dict[str, str]
    """What was measured, by name, for people."""

    def lines(self) -> list[str]:
        """Returns the figures and the findings as lines of text."""
        shown = [f"preflight: {name}: {value}" for name, value in self.figures.items()]
        return shown + [f"preflight: {'REFUSED' if each.is_fatal else 'note'}: {each}" for each in self.findings]


def rehearse(
    step: TrainStep, batch: Mapping[str, np.ndarray[Any, Any]], *, vocab_size: int | None, is_fresh: bool = True
) -> Preflight:
    """Checks the batch, the memory, the first loss, every gradient, and that ten steps on one batch lower the loss.

    The steps run at the peak rate and are undone afterwards: weights, states and counters are what they were. With
    several ranks every rank must call it. `is_fresh` says whether the weights are untrained.
    """
    rows = step.config.global_batch_size // step.world_size
    findings = check_batch(batch, rows=rows, vocab_size=vocab_size)
    figures: dict[str, str] = {}
    if any(finding.is_fatal for finding in findings):
        return Preflight(findings=findings, figures=figures)
    seq_length = batch["input_ids"].shape[1]
    findings += check_memory(step, seq_length=seq_length, vocab_size=vocab_size)
    memory = estimate_memory(step, seq_length=seq_length, vocab_size=vocab_size)
    figures["memory, at least"] = ", ".join(f"{name} {format_bytes(count)}" for name, count in memory.items())
    kept = _snapshot(step)
    try:
        _clear(step)
        first = step.run(batch)
        findings += _check_gradients(step, batch, first)
        loss = first.loss_sum / max(first.tokens, 1)
        figures["first loss"] = f"{loss:.4f}" + (
            f" (ln of the vocabulary: {math.log(vocab_size):.4f})" if vocab_size else ""
        )
        figures["gradient norm"] = f"{first.grad_norm:.4g}"
        if vocab_size is not None and is_fresh:
            findings += check_first_loss(loss, vocab_size)
        if first.is_applied:
            losses = [loss] + [step.run(batch).loss_sum / first.tokens for _ in range(_STEPS)]
            figures["loss on one repeated batch"] = " ".join(f"{each:.3f}" for each in losses)
            findings += check_fall(losses, step.config.learning_rate)
    finally:
        _undo(step, kept)
    return Preflight(findings=findings, figures=figures)


def require_sound(preflight: Preflight) -> None:
    """Raises PreflightError with all fatal findings."""
    if fatal := [str(finding) for finding in preflight.findings if finding.is_fatal]:
        raise PreflightError("preflight: " + "; ".join(fatal))


def check_memory(step: TrainStep, *, seq_length: int, vocab_size: int | None) -> list[Finding]:
    """Compares the least memory of a step with what there is; not fatal, for the system may still swap."""
    total = estimate_memory(step, seq_length=seq_length, vocab_size=vocab_size)["total"]
    available = available_memory(step)
    if available is None or total <= available:
        return []
    return [
        Finding(
            f"memory: a step needs at least {format_bytes(total)}, there are {format_bytes(available)}",
            "the model, its optimizer states or the logits of a micro-batch are too large for this device",
            "lower train.micro_batch_size, set train.optimizer_state to bfloat16, or split the model over more devices",
            is_fatal=False,
        )
    ]


def check_fall(losses: list[float], learning_rate: float) -> list[Finding]:
    """Judges the losses of one repeated batch."""
    first, last = losses[0], losses[-1]
    if last <= first * (1 - _LEAST_FALL):
        return []
    what = f"loss on one repeated batch: found {first:.4f} falling to {last:.4f} in {len(losses) - 1} steps"
    if math.isfinite(last) and abs(last - first) <= first * _LEAST_FALL:
        cause, fix = "the weights hardly move: the rate is tiny, or what matters is frozen", "raise train.learning_rate"
        return [Finding(what, f"{cause} (train.learning_rate {learning_rate:g})", fix, is_fatal=False)]
    cause, fix = f"the rate is too high (train.learning_rate {learning_rate:g})", "lower it tenfold and try again"
    return [Finding(what, cause, fix)]


def _check_gradients(step: TrainStep, batch: Mapping[str, np.ndarray[Any, Any]], first: StepResult) -> list[Finding]:
    """After one step from empty states, a state that is all zero had a gradient that is all zero."""
    if not first.tokens:
        return [Finding("first batch: found no label that is not -100", "a mask that is inverted", "look at a row")]
    if not math.isfinite(first.grad_norm):
        where = describe(diagnose_batch(step, batch, first.loss_scale))
        if step.is_scale_dynamic:
            cause, fix = (
                "the first loss scale overflows float16",
                "nothing, it falls by itself, or lower train.loss_scale",
            )
            return [Finding(f"first gradient: not finite; {where}", cause, fix, is_fatal=False)]
        cause, fix = "weights or an operation of the model that overflows", "look at the cell named"
        return [Finding(f"first gradient: found norm {first.grad_norm}; {where}", cause, fix)]
    still = []
    for slot in ("exp_avg", "momentum_buffer"):
        for name, state in step.optimizer.slots.get(slot, {}).items():
            if not state.asnumpy().astype(np.float64).any():
                still.append(name)
    if not still:
        return []
    return [
        Finding(
            f"gradients: zero everywhere for {', '.join(sorted(still))}",
            "the model does not use these parameters, or a stop_gradient or a dead branch cuts them off",
            "use them, or name them in train.frozen",
        )
    ]


def _snapshot(step: TrainStep) -> list[tuple[Any, np.ndarray[Any, Any]]]:
    return [(parameter, np.array(parameter.asnumpy())) for parameter in _all_of(step)]


def _all_of(step: TrainStep) -> list[Any]:
    states = [each for states in step.optimizer.slots.values() for each in states.values()]
    counters = [step.step, step.updates, step.skipped_in_row, step.good_steps, step.loss_scale]
    return [*step.state.saved.values(), *step.state.copies.values(), *states, *counters]


def _clear(step: TrainStep) -> None:
    """Empty states, no updates, and the step of the schedule's peak."""
    for slot, states in step.optimizer.slots.items():
        for state in states.values():
            if slot != "ema":
                write(state, np.zeros(state.shape, np.float32))
    write(step.updates, np.array(0, np.int32))
    write(step.step, np.array(max(step.config.warmup_steps - 1, 0), np.int32))


def _undo(step: TrainStep, kept: list[tuple[Any, np.ndarray[Any, Any]]]) -> None:
    for parameter, value in kept:
        write(parameter, value)
