"""The file `metrics.jsonl` of contract `metrics`, version 1: written line by line, cut and continued on resume."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ms_trainloop.errors import MetricsError

FORMAT, VERSION = "ms-trainloop.metrics", 1
FILE_NAME = "metrics.jsonl"


class MetricsFile:
    """Appends lines to `run_dir/metrics.jsonl`; use it in a `with` statement."""

    def __init__(self, run_dir: Path, *, step: int) -> None:
        """Opens the file as a run that has done `step` steps needs it.

        Lines beyond `step` and a torn last line are removed. A run that starts at step 0 does not touch the lines
        of an earlier one: their file is renamed to `metrics.1.jsonl` (the first free number).
        """
        self._path = run_dir / FILE_NAME
        run_dir.mkdir(parents=True, exist_ok=True)
        lines: list[dict[str, Any]] = []
        if self._path.exists():
            if step == 0:
                _set_aside(self._path)
            else:
                lines = [line for line in read_metrics(run_dir) if line["step"] <= step]
        _replace(self._path, [{"format": FORMAT, "version": VERSION}, *lines])
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        self.lines = lines
        """What the file held when it was opened or rewound."""

    def rewind(self, step: int) -> None:
        """Removes the lines beyond `step`, as a run that goes back to it needs it."""
        os.close(self._descriptor)
        self.lines = [line for line in read_metrics(self._path.parent) if line["step"] <= step]
        _replace(self._path, [{"format": FORMAT, "version": VERSION}, *self.lines])
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)

    def write(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Writes one line in one call, numbers that are not finite as null; returns what was written."""
        finite = {key: _finite(value) for key, value in line.items()}
        os.write(self._descriptor, _encode(finite))
        return finite

    def sync(self) -> None:
        """Makes the lines durable; called before a checkpoint that counts on them."""
        os.fsync(self._descriptor)

    def __enter__(self) -> "MetricsFile":
        """Returns the file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Returns all lines after the first; a last line without its line feed is a crash's remains and is left out.

    Raises:
        MetricsError: No such file, another format or version, or a line that is not a JSON object.
    """
    path = run_dir / FILE_NAME
    if not path.is_file():
        raise MetricsError(f"{path}: no such file; give the folder of a run that has logged")
    rows = path.read_bytes().split(b"\n")[:-1]
    lines = [_decode(row, f"{path}:{number}") for number, row in enumerate(rows, 1)]
    if not lines:
        raise MetricsError(f"{path}: empty; expected a first line with format {FORMAT}, version {VERSION}")
    found = (lines[0].get("format"), lines[0].get("version"))
    if found != (FORMAT, VERSION):
        raise MetricsError(f"{path}: found format {found[0]}, version {found[1]}; expected {FORMAT}, version {VERSION}")
    for number, line in enumerate(lines[1:], 2):
        if not isinstance(line.get("step"), int) or not isinstance(line.get("kind"), str):
            raise MetricsError(f"{path}:{number}: expected an object with `kind` and `step`")
    return lines[1:]


def _decode(row: bytes, place: str) -> dict[str, Any]:
    try:
        line = json.loads(row)
    except ValueError as error:
        raise MetricsError(f"{place}: not JSON ({error}); the file was changed by hand or damaged") from error
    if not isinstance(line, dict):
        raise MetricsError(f"{place}: found {type(line).__name__}, expected an object")
    return line


def _encode(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace(path: Path, lines: list[dict[str, Any]]) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(b"".join(map(_encode, lines)))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _set_aside(path: Path) -> None:
    number = 1
    while (kept := path.with_name(f"metrics.{number}.jsonl")).exists():
        number += 1
    path.rename(kept)
