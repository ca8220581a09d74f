"""Early warnings while training: the evaluation loss turns upward, or a sample repeats itself."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

_RISES = 2
_LEAST_RISE = 0.002
"""A rise below this share of the loss is noise of the evaluation."""
_NGRAM = 4
_LEAST_UNITS = 16
_LEAST_DISTINCT = 0.5


class Watch:
    """Looks at the lines of the metrics as they come; one warning for each turn, not for each evaluation after it."""

    def __init__(self, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        """Starts with the lines of a resumed run."""
        self._trained: list[float] = []
        self._points: list[tuple[int, float, float]] = []
        for line in lines:
            self.look(line)

    def look(self, line: Mapping[str, Any]) -> str | None:
        """Takes a line of the metrics and returns a warning, or None."""
        if line["kind"] == "train" and line["loss"] is not None:
            self._trained.append(line["loss"])
        elif line["kind"] == "sample":
            return find_repetition(line["prompt"], line["text"])
        elif line["kind"] == "evaluation" and line["loss"] is not None and self._trained:
            self._points.append((line["step"], line["loss"], sum(self._trained) / len(self._trained)))
            self._trained = []
            return self._find_overfitting()
        return None

    def _find_overfitting(self) -> str | None:
        last = self._points[-_RISES - 1 :]
        if len(last) <= _RISES:
            return None
        evaluated, trained = [point[1] for point in last], [point[2] for point in last]
        is_rising = all(b > a * (1 + _LEAST_RISE) for a, b in pairwise(evaluated))
        if not is_rising or trained[-1] >= trained[0]:
            return None
        del self._points[:-1]
        return (
            f"overfitting: the evaluation loss rose {_RISES} times, from {evaluated[0]:.4f} (step {last[0][0]}) to"
            f" {evaluated[-1]:.4f} (step {last[-1][0]}), while the training loss fell from {trained[0]:.4f} to"
            f" {trained[-1]:.4f}; stop at the best checkpoint, take more data, fewer epochs or more weight decay"
        )


def find_repetition(prompt: str, text: str) -> str | None:
    """Returns a warning if a sample repeats itself: fewer than half of its 4-grams are distinct.

    Units are words, or characters where words are few and long (Chinese); shorter texts than 16 units are not judged.
    """
    share = distinct_share(_units(text.removeprefix(prompt)))
    if share is None or share >= _LEAST_DISTINCT:
        return None
    return (
        f"repetition: only {share:.0%} of the {_NGRAM}-grams of the sample for {prompt!r} are distinct; early in a run"
        " this is usual, later it means too high a rate, repeated documents in the data, or greedy sampling"
    )


def distinct_share(units: Sequence[str]) -> float | None:
    """Returns the share of distinct 4-grams, or None for fewer than 16 units."""
    if len(units) < _LEAST_UNITS:
        return None
    grams = [tuple(units[i : i + _NGRAM]) for i in range(len(units) - _NGRAM + 1)]
    return len(set(grams)) / len(grams)


def _units(text: str) -> list[str]:
    words = text.split()
    return words if words and len(text) / len(words) < 15 else [char for char in text if not char.isspace()]
