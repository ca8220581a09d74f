"""How a build is cut into tasks: by the input alone, so that any number of workers writes the same shards."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from ms_dataprep.sources import Source


@dataclass(frozen=True, kw_only=True)
class Part:
    """A source, or whole lines of one."""

    source: int
    """Number of the source."""
    begin: int
    """First byte."""
    num_bytes: int | None
    """Bytes, up to a line's end; None: all of the file."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one worker reads at a time."""

    number: int
    """Counts from 0, in the order of the input."""
    parts: tuple[Part, ...]
    """In order."""


def plan_tasks(sources: Sequence[Source], task_bytes: int) -> list[Task]:
    """Cuts divisible sources at line ends and gathers small ones, so that a task reads about `task_bytes`."""
    tasks: list[Task] = []
    waiting: list[Part] = []
    size = 0
    for number, source in enumerate(sources):
        for part in _cut(number, source, task_bytes):
            part_bytes = source.bytes if part.num_bytes is None else part.num_bytes
            if waiting and size + part_bytes > task_bytes:
                tasks.append(Task(number=len(tasks), parts=tuple(waiting)))
                waiting, size = [], 0
            waiting.append(part)
            size += part_bytes
    if waiting:
        tasks.append(Task(number=len(tasks), parts=tuple(waiting)))
    return tasks


def _cut(number: int, source: Source, task_bytes: int) -> list[Part]:
    if not source.is_divisible or source.bytes <= task_bytes:
        return [Part(source=number, begin=0, num_bytes=None)]
    count = -(-source.bytes // task_bytes)
    edges = [0]
    with Path(source.path).open("rb") as file:
        for place in range(1, count):
            edge = _find_line(file, source.bytes * place // count)
            if edges[-1] < edge < source.bytes:
                edges.append(edge)
    edges.append(source.bytes)
    return [Part(source=number, begin=begin, num_bytes=end - begin) for begin, end in pairwise(edges)]


def _find_line(file: BinaryIO, place: int) -> int:
    """The first byte of the first line that begins after byte `place` - 1."""
    file.seek(place - 1)
    file.readline()
    return file.tell()
