"""The second stage of a build: which of all documents, lines or paragraphs were seen before.

The first in the order of the input survives, however many workers read it. Memory is bounded: hashes stay on disk and
are compared a range of values at a time; what is held for every document is one byte, and eight where near-duplicates
are looked for; for every dropped one, sixteen.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.spool import Spool

KEPT, DUPLICATE, NEAR_DUPLICATE = 0, 1, 2
_KEYS_AT_ONCE = 1 << 23


@dataclass(kw_only=True)
class Duplicates:
    """What was seen before, in documents numbered through all spools."""

    fates: NDArray[np.uint8]
    """KEPT, DUPLICATE or NEAR_DUPLICATE of each document."""
    survivors: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Of each document that is no longer KEPT, in order, the one of its cluster that stays."""
    repeated_units: list[NDArray[np.bool_]] = field(default_factory=list)
    """Of each spool, whether each line or paragraph was seen before; empty where nobody asked."""

    @property
    def cluster_sizes(self) -> dict[int, int]:
        """Clusters of duplicates by their size: size -> number of clusters."""
        sizes = np.unique(self.survivors, return_counts=True)[1] + 1
        return dict(sorted(Counter(sizes.tolist()).items()))


def find_duplicates(spools: Sequence[Spool], *, dedup: str, near_threshold: float, has_units: bool) -> Duplicates:
    """Compares all documents of all spools.

    Args:
        spools: in the order of the input.
        dedup: `none`, `exact` or `near`.
        near_threshold: estimated Jaccard similarity from which a pair that shares a band is one cluster's.
        has_units: whether lines or paragraphs are compared too; those of documents that are dropped do not count.
    """
    offsets = np.cumsum([0] + [len(spool) for spool in spools])
    found = Duplicates(fates=np.zeros(offsets[-1], dtype=np.uint8))
    moved = {"numbers": [np.empty(0, np.int64)], "survivors": [np.empty(0, np.int64)]}
    if dedup != "none":
        highs = [spool.column("high", np.uint64) for spool in spools]
        lows = [spool.column("low", np.uint64) for spool in spools]
        for numbers, high in _ranges(highs):
            low = np.concatenate([column[part] for column, part in zip(lows, _parts(numbers, offsets), strict=True)])
            firsts = _first_places(high, low)
            repeated = np.flatnonzero(firsts != np.arange(len(firsts)))
            found.fates[numbers[repeated]] = DUPLICATE
            moved["numbers"].append(numbers[repeated])
            moved["survivors"].append(numbers[firsts[repeated]])
    if dedup == "near":
        near, kept = _find_near(spools, offsets, found.fates, near_threshold)
        found.fates[near] = NEAR_DUPLICATE
        for survivors in moved["survivors"]:  # copies of a near-duplicate belong to its cluster
            places = np.minimum(np.searchsorted(near, survivors), max(0, len(near) - 1))
            if len(near):
                survivors[...] = np.where(near[places] == survivors, kept[places], survivors)
        moved["numbers"].append(near)
        moved["survivors"].append(kept)
    order = np.argsort(np.concatenate(moved["numbers"]))
    found.survivors = np.concatenate(moved["survivors"])[order]
    if has_units:
        found.repeated_units = _find_repeated_units(spools, offsets, found.fates)
    return found


def _ranges(columns: Sequence[NDArray[np.uint64]]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """Numbers (through all columns, rising) and keys, those of one range of values at a time."""
    total = sum(map(len, columns))
    num_ranges = max(1, -(-total // _KEYS_AT_ONCE))
    offsets = np.cumsum([0] + [len(column) for column in columns])
    for place in range(num_ranges):
        low, high = (place << 64) // num_ranges, ((place + 1) << 64) // num_ranges - 1
        numbers, keys = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for offset, column in zip(offsets.tolist(), columns, strict=False):
            here = np.flatnonzero((column >= np.uint64(low)) & (column <= np.uint64(high)))
            numbers.append(here + offset)
            keys.append(column[here])
        yield np.concatenate(numbers), np.concatenate(keys)


def _parts(numbers: NDArray[np.int64], offsets: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Rising numbers through all spools as places in each."""
    edges = np.searchsorted(numbers, offsets)
    for place, offset in enumerate(offsets[:-1].tolist()):
        yield numbers[edges[place] : edges[place + 1]] - offset


def _first_places(*keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Of each place, the first one with the same keys."""
    order = np.lexsort(keys)  # stable: equal ones stay in the order of the input
    is_first = np.ones(len(order), dtype=bool)
    for place, key in enumerate(keys):
        differs = key[order][1:] != key[order][:-1]
        is_first[1:] = differs if place == 0 else is_first[1:] | differs
    groups = np.cumsum(is_first) - 1
    firsts = np.empty(len(order), dtype=np.int64)
    firsts[order] = order[is_first][groups]
    return firsts


def _find_near(
    spools: Sequence[Spool], offsets: NDArray[np.int64], fates: NDArray[np.uint8], threshold: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The near-duplicates in order, and of each the first document of its cluster."""
    signed, bands, owners = [], [], []
    for offset, spool in zip(offsets.tolist(), spools, strict=False):
        here = spool.column("signed", np.int64)
        keep = np.flatnonzero(fates[here + offset] == KEPT)
        signed.append(here[keep] + offset)
        bands.append((spool.column("bands", np.uint64), keep))
        owners.append((spool.column("signatures", np.uint32), keep))
    numbers = np.concatenate([np.empty(0, np.int64), *signed])
    edges = np.cumsum([0] + [len(part) for part in signed])

    def signature(place: int) -> NDArray[np.uint32]:
        spool = int(np.searchsorted(edges, place, side="right")) - 1
        column, keep = owners[spool]
        found: NDArray[np.uint32] = column[keep[place - edges[spool]]]
        return found

    parents = np.arange(len(numbers))

    def find_root(place: int) -> int:
        while parents[place] != place:
            parents[place] = parents[parents[place]]
            place = int(parents[place])
        return place

    num_bands = max((column.shape[1] for column, _ in bands if len(column)), default=0)
    for band in range(num_bands):
        columns: list[Any] = [column[keep, band] if len(keep) else np.empty(0, np.uint64) for column, keep in bands]
        for places, keys in _ranges(columns):
            order = np.argsort(keys, kind="stable")
            changes = np.flatnonzero(keys[order][1:] != keys[order][:-1]) + 1
            for begin, end in pairwise([0, *changes.tolist(), len(order)]):
                group = places[order[begin:end]]
                for before, place in pairwise(group.tolist()):
                    # With the first of the group and with its neighbour: a chain of edits must not part a cluster.
                    for other in {int(group[0]), before}:
                        first, second = find_root(other), find_root(place)
                        if first != second and _similarity(signature(other), signature(place)) >= threshold:
                            parents[max(first, second)] = min(first, second)
    moved = np.flatnonzero(parents != np.arange(len(parents)))
    roots = np.array([find_root(place) for place in moved.tolist()], dtype=np.int64)
    return numbers[moved], numbers[roots]


def _similarity(first: NDArray[np.uint32], second: NDArray[np.uint32]) -> float:
    return float((first == second).mean())


def _find_repeated_units(
    spools: Sequence[Spool], offsets: NDArray[np.int64], fates: NDArray[np.uint8]
) -> list[NDArray[np.bool_]]:
    columns = []
    for offset, spool in zip(offsets.tolist(), spools, strict=False):
        units, owners = np.array(spool.column("units", np.uint64)), spool.column("unit_owners", np.int64)
        units[fates[owners + offset] != KEPT] = 0
        columns.append(units)
    seen = np.zeros(sum(map(len, columns)), dtype=bool)
    for numbers, keys in _ranges(columns):
        seen[numbers] = (_first_places(keys) != np.arange(len(keys))) & (keys != 0)
    return np.split(seen, np.cumsum([len(column) for column in columns])[:-1])
