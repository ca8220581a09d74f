"""Cheap checks of the first batch and the first loss: what goes wrong most, said before a night is spent on it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_trainloop.errors import BatchError

KEYS = ("input_ids", "labels", "position_ids", "segment_ids")
_MASKED_SHARE = 0.5
_LOSS_DISTANCE = 1.5


@dataclass(frozen=True)
class Finding:
    """Something that is wrong (`is_fatal`) or looks wrong."""

    what: str
    """What was found, with place and value, and what was expected."""
    cause: str
    """The likely cause."""
    fix: str
    """What to do."""
    is_fatal: bool = True
    """Whether training on it makes no sense."""

    def __str__(self) -> str:
        """Returns the finding as one line."""
        return f"{self.what} (likely cause: {self.cause}; fix: {self.fix})"


def require_sound_batch(batch: Mapping[str, Any], *, rows: int, vocab_size: int | None) -> list[Finding]:
    """Returns the findings that only look wrong; raises BatchError with all the fatal ones."""
    findings = check_batch(batch, rows=rows, vocab_size=vocab_size)
    if fatal := [str(finding) for finding in findings if finding.is_fatal]:
        raise BatchError("first batch: " + "; ".join(fatal))
    return findings


def check_batch(batch: Mapping[str, Any], *, rows: int, vocab_size: int | None = None) -> list[Finding]:
    """Checks a batch of contract `batch`: keys, types, shapes, ids, label shift, share of masked labels."""
    findings = _check_arrays(batch, rows)
    if findings:
        return findings
    ids, labels = np.asarray(batch["input_ids"]), np.asarray(batch["labels"])
    tokenizer = "the data was tokenized with another tokenizer than the model's"
    for key, array, lowest in (("input_ids", ids, 0), ("labels", labels, -100)):
        wrong = array < lowest
        if key == "labels":
            wrong |= (array < 0) & (array != -100)
        if vocab_size is not None:
            wrong |= array >= vocab_size
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            limit = "0 or more" if vocab_size is None else f"0 ... {vocab_size - 1}"
            findings.append(
                Finding(
                    f"{key}[{row}, {column}]: found id {array[row, column]}, expected {limit}",
                    tokenizer,
                    "build the data set with the model's tokenizer, or give the model its vocabulary size",
                )
            )
    is_label = labels[:, :-1] != -100
    shifted = is_label & (labels[:, :-1] != ids[:, 1:])
    if shifted.any():
        row, column = np.argwhere(shifted)[0]
        same = is_label & (labels[:, :-1] == ids[:, :-1])
        cause = "labels are not shifted" if same.sum() == is_label.sum() else "labels and inputs come from other rows"
        findings.append(
            Finding(
                f"labels[{row}, {column}]: found {labels[row, column]}, expected the next input {ids[row, column + 1]}"
                f" ({int(shifted.sum())} of {int(is_label.sum())} labels differ)",
                cause,
                "give input_ids = row[:-1] and labels = row[1:]",
            )
        )
    share = float((labels == -100).mean())
    if share > _MASKED_SHARE:
        findings.append(
            Finding(
                f"labels: {share:.0%} of them are -100",
                "much padding, very short documents, or a mask that is inverted",
                "pack documents into rows; look at a row",
                is_fatal=False,
            )
        )
    return findings


def check_first_loss(loss: float, vocab_size: int) -> list[Finding]:
    """Compares the first loss of a fresh model with ln(vocab_size), that of a guess among all ids."""
    expected = math.log(vocab_size)
    if math.isfinite(loss) and abs(loss - expected) <= _LOSS_DISTANCE:
        return []
    cause, fix = "weights are initialized too wide, or the loss is wrong", "check the initializer's range"
    if loss < expected:
        cause, fix = "the model is not fresh", "nothing, if it starts from trained weights"
    what = f"first loss: found {loss:.4g}, expected about ln({vocab_size}) = {expected:.4g}"
    return [Finding(what, cause, fix, is_fatal=False)]


def _check_arrays(batch: Mapping[str, Any], rows: int) -> list[Finding]:
    missing = [key for key in KEYS if key not in batch]
    if missing:
        found = ", ".join(map(str, batch))
        fix = "yield dicts with the four keys of contract `batch`"
        return [Finding(f"keys: found {found}; missing {', '.join(missing)}", "another kind of loader", fix)]
    findings = []
    for key in KEYS:
        array = np.asarray(batch[key])
        if array.dtype != np.int32:
            findings.append(
                Finding(f"{key}: found {array.dtype}, expected int32", "a loader's default", "cast to int32")
            )
        if array.ndim != 2 or array.shape[0] != rows:
            shape = list(array.shape)
            findings.append(
                Finding(
                    f"{key}: found shape {shape}, expected [{rows}, seq_length]",
                    "the loader's batch size is not global_batch_size / ranks",
                    "give the loader this rank's part of the global batch",
                )
            )
    shapes = {np.asarray(batch[key]).shape for key in KEYS}
    if not findings and len(shapes) > 1:
        findings.append(
            Finding(f"shapes differ: {sorted(shapes)}", "arrays of different rows", "give four arrays of one shape")
        )
    return findings
