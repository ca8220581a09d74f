"""Packing: from documents' ids to rows. Pure functions of numpy arrays; a document here ends with its EOD."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Piece = tuple[int, int]  # half-open range of ids in the joined documents
Rows = list[list[Piece]]


@dataclass
class PackingCounts:
    """What packing did to the documents so far; the contract's counts."""

    rows: int = 0
    documents: int = 0
    tokens: int = 0
    padding_tokens: int = 0
    repeated_tokens: int = 0
    truncated_tokens: int = 0
    documents_cut: int = 0
    row_length: int = field(default=0, repr=False)

    @property
    def padding_share(self) -> float:
        """Padding among all ids of all rows."""
        return self.padding_tokens / (self.rows * self.row_length) if self.rows else 0.0


def plan_best_fit(lengths: Sequence[int], row_length: int) -> Rows:
    """Assigns documents to rows, the longest first, each to the fullest row that still holds it.

    A document that fits a row is not cut. A longer one fills rows of its own, each piece but the first repeating the
    last id before it, and only its last piece shares a row. Rows come in the order of their first documents.
    Linear in the number of documents: rows are found by their free space, through one bit for each size of it.

    Args:
        lengths: ids of each document, in order; ranges refer to the documents joined.
        row_length: ids of a row.
    """
    rows: Rows = []
    loose: list[tuple[int, Piece]] = []  # (place in reading order, range) of what may share a row
    tails: set[int] = set()
    start = 0
    for length in lengths:
        end = start + length
        while end - start > row_length:
            rows.append([(start, start + row_length)])
            start += row_length - 1
            tails.add(start)
        loose.append((end - start, (start, end)))
        start = end

    open_rows: list[list[int]] = [[] for _ in range(row_length + 1)]  # by free ids
    sizes_in_use = 0
    for length, piece in sorted(loose, key=lambda entry: (-entry[0], entry[1])):
        fitting = sizes_in_use >> length
        if fitting:
            free = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[free].pop()
            if not open_rows[free]:
                sizes_in_use &= ~(1 << free)
            rows[row].append(piece)
        else:
            free, row = row_length, len(rows)
            rows.append([piece])
        left = free - length
        if left:
            open_rows[left].append(row)
            sizes_in_use |= 1 << left
    for pieces in rows:
        pieces.sort(key=lambda piece: (piece[0] not in tails, piece))  # a tail's repeated id should be no label
    rows.sort()
    return rows


def plan_stream(num_ids: int, row_length: int) -> Rows:
    """Rows of one stream of ids: each begins with the last id of the one before it; the last may not be full."""
    stride = row_length - 1
    return [[(start, min(start + row_length, num_ids))] for start in range(0, max(1, num_ids - 1), stride)]


def fill_rows(ids: NDArray[np.int32], plan: Rows, row_length: int, filler: int) -> NDArray[np.int32]:
    """The rows [len(plan), row_length] (int32) of a plan over joined documents, padded with `filler`."""
    rows = np.full((len(plan), row_length), filler, dtype=np.int32)
    for row, pieces in zip(rows, plan, strict=True):
        place = 0
        for start, end in pieces:
            row[place : place + end - start] = ids[start:end]
            place += end - start
    return rows


class Packer:
    """Turns documents into rows, and counts what it does. Holds the ids of all its documents."""

    def __init__(self, method: str, row_length: int, *, filler: int) -> None:
        self.counts = PackingCounts(row_length=row_length)
        self._method = method
        self._row_length = row_length
        self._filler = filler
        self._documents: list[NDArray[np.int32]] = []

    def add(self, document: NDArray[np.int32]) -> None:
        """Takes one document's ids (int32, two or more, EOD last)."""
        counts = self.counts
        counts.documents += 1
        counts.tokens += len(document)
        if self._method == "one_per_row" and len(document) > self._row_length:
            surplus = len(document) - self._row_length
            counts.truncated_tokens += surplus
            counts.tokens -= surplus
            document = document[: self._row_length]
        if self._method == "best_fit" and len(document) > self._row_length:
            counts.documents_cut += 1
            counts.repeated_tokens += (len(document) - 2) // (self._row_length - 1)
        if self._method == "concat":
            self._count_concat_cut(len(document))
        self._documents.append(document)

    def finish(self) -> NDArray[np.int32]:
        """The rows of all documents, int32 [rows, row_length]; none when there is no document."""
        if not self._documents:
            return np.empty((0, self._row_length), dtype=np.int32)
        lengths = [len(document) for document in self._documents]
        ids = np.concatenate(self._documents)
        if self._method == "concat":
            plan = plan_stream(len(ids), self._row_length)
            self.counts.repeated_tokens += len(plan) - 1
        elif self._method == "one_per_row":
            ends = np.cumsum(lengths).tolist()
            plan = [[(start, end)] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        else:
            plan = plan_best_fit(lengths, self._row_length)
        rows = fill_rows(ids, plan, self._row_length, self._filler)
        self.counts.rows += len(rows)
        self.counts.padding_tokens += rows.size - sum(end - start for pieces in plan for start, end in pieces)
        return rows

    def _count_concat_cut(self, length: int) -> None:
        stride = self._row_length - 1
        end = self.counts.tokens
        first_row, last_row = max(0, (end - length - 1) // stride), max(0, (end - 2) // stride)
        self.counts.documents_cut += last_row > first_row
