"""Lists of what a build left out: bad lines in rejected.jsonl, dropped documents with their rule in dropped.jsonl."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ms_dataprep.deduplication import KEPT, NEAR_DUPLICATE, Duplicates
from ms_dataprep.reading import DROPPED, REJECTED, ReadCounts
from ms_dataprep.shards import sync
from ms_dataprep.spool import Spool


def rejected_lines(
    spools: Sequence[Path], read: Sequence[ReadCounts], paths: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The bad lines of all tasks with `file`, `line` and `reason`."""
    for entry, before in _entries(spools, read, REJECTED):
        yield {"file": paths[entry["source"]], "line": entry["line"] + before, "reason": entry["reason"]}


def list_rejected(folder: Path, spools: Sequence[Path], read: Sequence[ReadCounts], paths: Sequence[str]) -> None:
    """Writes the bad lines into `folder`/rejected.jsonl, if there are any."""
    if any(counts.dropped.get("bad_line") for counts in read):
        _write(folder / REJECTED, rejected_lines(spools, read, paths))


def list_dropped(
    folder: Path,
    spools: Sequence[Path],
    read: Sequence[ReadCounts],
    paths: Sequence[str],
    arrays: Sequence[Spool],
    duplicates: Duplicates,
) -> None:
    """The dropped documents of all tasks with file, line, rule, value and threshold, into `folder`/dropped.jsonl.

    A duplicate has the rule `duplicate` or `near_duplicate`, and `cluster`: file and line of the document that stays.
    """
    _write(folder / DROPPED, _dropped(spools, read, paths, _Places(arrays, read, paths), duplicates))


def _dropped(
    spools: Sequence[Path], read: Sequence[ReadCounts], paths: Sequence[str], places: "_Places", duplicates: Duplicates
) -> Iterator[dict[str, Any]]:
    for entry, before in _entries(spools, read, DROPPED):
        yield {"file": paths[entry.pop("source")], "line": entry.pop("line") + before, **entry}
    gone = np.flatnonzero(duplicates.fates != KEPT)
    for number, survivor in zip(gone.tolist(), duplicates.survivors.tolist(), strict=True):
        rule = "near_duplicate" if duplicates.fates[number] == NEAR_DUPLICATE else "duplicate"
        kept = places.of(survivor)
        yield {**places.of(number), "rule": rule, "cluster": f"{kept['file']}:{kept['line']}"}


class _Places:
    """File and line of a document that is numbered through all spools."""

    def __init__(self, spools: Sequence[Spool], read: Sequence[ReadCounts], paths: Sequence[str]) -> None:
        self._spools = spools
        self._paths = paths
        self._offsets = np.cumsum([0] + [len(spool) for spool in spools])
        self._before = list(_lines_before(read))

    def of(self, number: int) -> dict[str, Any]:
        task = int(np.searchsorted(self._offsets, number, side="right")) - 1
        place = number - int(self._offsets[task])
        source = int(self._spools[task].column("sources", np.int64)[place])
        line = int(self._spools[task].column("lines", np.int64)[place])
        return {"file": self._paths[source], "line": line + self._before[task].get(str(source), 0)}


def _entries(spools: Sequence[Path], read: Sequence[ReadCounts], name: str) -> Iterator[tuple[dict[str, Any], int]]:
    """A list's entries of every task, each with the lines of its source that stand in earlier tasks."""
    for spool, before in zip(spools, _lines_before(read), strict=True):
        with (spool / name).open(encoding="utf-8") as file:
            for line in file:
                entry = json.loads(line)
                yield entry, before.get(str(entry["source"]), 0)


def _lines_before(read: Sequence[ReadCounts]) -> Iterator[dict[str, int]]:
    before: dict[str, int] = {}
    for counts in read:
        yield dict(before)
        for source, lines in counts.lines.items():
            before[source] = before.get(source, 0) + lines


def _write(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    sync(path)
