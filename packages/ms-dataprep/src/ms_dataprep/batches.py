"""From rows to the arrays of a training step (contract `batch`); B rows a batch, S = seq_length."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED_LABEL = -100
COLUMNS = ("input_ids", "labels", "position_ids", "segment_ids")
_TAIL = 32  # padding is rarely longer: the rest of a row is looked at only where it is


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
    trailing = _count_trailing(rows[:, -_TAIL:], filler)
    if (is_longer := trailing == min(_TAIL, rows.shape[1])).any():
        trailing[is_longer] = _count_trailing(rows[is_longer], filler)
    if special.pad is None:
        trailing = np.maximum(trailing - 1, 0)
    lengths: NDArray[np.int64] = rows.shape[1] - trailing
    return lengths


def make_batch(rows: NDArray[np.int32], special: SpecialIds) -> dict[str, NDArray[np.int32]]:
    """The four int32 arrays [B, S] of rows [B, S + 1].

    Labels are the next ids, -100 where that is padding or another document's first id. Positions restart, and
    segments count on from 1, at each document; both are 0 on padding.

    Documents are few beside ids: what differs between them is computed once a document and repeated over its ids,
    3 ns an id in all where running sums and maxima over the ids took 14.
    """
    num_rows, length = rows.shape[0], rows.shape[1] - 1
    inputs, labels = rows[:, :-1].copy(), rows[:, 1:].copy()
    contents = content_lengths(rows, special)
    ends = np.flatnonzero(inputs.reshape(-1) == special.eod)
    labels.reshape(-1)[ends] = IGNORED_LABEL

    end_rows = ends // length
    begins = ends[ends - end_rows * length < contents[end_rows]] + 1
    begins = np.union1d(begins[begins < inputs.size], np.arange(num_rows) * length)
    begin_rows = begins // length
    firsts = np.searchsorted(begin_rows, np.arange(num_rows))  # of each row, the number of its first document
    sizes = np.diff(np.append(begins, inputs.size))
    segments = np.repeat((np.arange(len(begins)) - firsts[begin_rows] + 1).astype(np.int32), sizes)
    offsets = np.repeat((begins - begin_rows * length).astype(np.int32), sizes)
    segments, offsets = segments.reshape(inputs.shape), offsets.reshape(inputs.shape)
    positions = np.subtract(np.arange(length, dtype=np.int32), offsets, out=offsets)
    for row in np.flatnonzero(contents <= length):
        content = contents[row]
        labels[row, max(content - 1, 0) :] = IGNORED_LABEL
        segments[row, content:] = 0
        positions[row, content:] = 0
    return {"input_ids": inputs, "labels": labels, "position_ids": positions, "segment_ids": segments}


def _count_trailing(rows: NDArray[np.int32], filler: int) -> NDArray[np.int64]:
    differs = rows[:, ::-1] != filler
    return np.where(differs.any(axis=1), differs.argmax(axis=1), rows.shape[1])


def mask_rows(batch: dict[str, NDArray[np.int32]], first: int) -> None:
    """Makes the rows from `first` on count for nothing, in place: they only fill up a batch."""
    for name, array in batch.items():
        array[first:] = IGNORED_LABEL if name == "labels" else 0
