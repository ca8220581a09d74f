"""From rows to the arrays of a training step (contract `batch`); B rows a batch, S = seq_length."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED_LABEL = -100
COLUMNS = ("input_ids", "labels", "position_ids", "segment_ids")


@dataclass(frozen=True, kw_only=True)
class SpecialIds:
    """The ids that give a row its structure."""

    eod: int
    """Ends every document."""
    pad: int | None = None
    """Fills a row's end; None: EODs after a document's EOD do."""
    bos: int | None = None
    """Begins every document; None: nothing does."""


def content_lengths(rows: NDArray[np.int32], special: SpecialIds) -> NDArray[np.int64]:
    """How many ids of each row are not padding: int64 [B] for rows [B, S + 1]."""
    filler = special.eod if special.pad is None else special.pad
    differs = rows[:, ::-1] != filler
    trailing = np.where(differs.any(axis=1), differs.argmax(axis=1), rows.shape[1])
    if special.pad is None:
        trailing = np.maximum(trailing - 1, 0)
    lengths: NDArray[np.int64] = rows.shape[1] - trailing
    return lengths


def make_batch(rows: NDArray[np.int32], special: SpecialIds) -> dict[str, NDArray[np.int32]]:
    """The four int32 arrays [B, S] of rows [B, S + 1].

    Labels are the next ids, -100 where that is padding or another document's first id. Positions restart, and
    segments count on from 1, at each document; both are 0 on padding.
    """
    inputs = np.ascontiguousarray(rows[:, :-1])
    places = np.arange(inputs.shape[1], dtype=np.int32)
    lengths = content_lengths(rows, special).astype(np.int32)[:, None]
    is_content = places < lengths
    is_end = inputs == special.eod
    labels = np.where((places + 1 < lengths) & ~is_end, rows[:, 1:], np.int32(IGNORED_LABEL))

    begins = np.empty_like(is_end)
    begins[:, 0] = True
    begins[:, 1:] = is_end[:, :-1]
    segments = np.cumsum(begins, axis=1, dtype=np.int32)
    positions = places - np.maximum.accumulate(np.where(begins, places, np.int32(0)), axis=1)
    segments *= is_content
    positions *= is_content
    return {"input_ids": inputs, "labels": labels, "position_ids": positions, "segment_ids": segments}


def mask_rows(batch: dict[str, NDArray[np.int32]], first: int) -> None:
    """Makes the rows from `first` on count for nothing, in place: they only fill up a batch."""
    for name, array in batch.items():
        array[first:] = IGNORED_LABEL if name == "labels" else 0
