"""The spool of a task: its cleaned documents on disk between reading and writing, with what deduplication needs.

A folder of numpy arrays, D documents of L units (lines or paragraphs): `text.bin` their UTF-8 joined, `ends.npy`
[D] where each ends in it, `sources.npy` and `lines.npy` [D] where each came from, `high.npy` and `low.npy` [D] the
hash of its text, `copies.npy` [D] how often it is written and, where asked for, of the N documents long enough
`signed.npy` [N], `bands.npy` [N, bands] and `signatures.npy` [N, hashes], and `units.npy`, `unit_owners.npy` [L].
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SpoolWriter:
    """Collects a task's documents; `finish` writes the arrays, leaving the context closes the text."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder, which must not exist."""
        folder.mkdir()
        self._folder = folder
        self._text = (folder / "text.bin").open("wb")
        self._columns: dict[str, list[Any]] = {}
        self._end = 0

    def __len__(self) -> int:
        return len(self._columns.get("ends", ()))

    def add(self, text: str, **columns: Any) -> None:
        """Takes a document; every document brings the same columns."""
        data = text.encode("utf-8")
        self._text.write(data)
        self._end += len(data)
        self._columns.setdefault("ends", []).append(self._end)
        for name, value in columns.items():
            self._columns.setdefault(name, []).append(value)

    def extend(self, name: str, values: list[Any]) -> None:
        """Adds to a column that does not have one value a document."""
        self._columns.setdefault(name, []).extend(values)

    def __enter__(self) -> "SpoolWriter":
        return self

    def __exit__(self, *reason: object) -> None:
        self._text.close()

    def finish(self, dtypes: dict[str, np.dtype[Any]]) -> None:
        """Writes the columns as arrays; one without any value is left out."""
        self._text.flush()
        for name, values in self._columns.items():
            np.save(self._folder / f"{name}.npy", np.array(values, dtype=dtypes.get(name, np.dtype(np.int64))))


class Spool:
    """A finished spool; arrays are mapped, not loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """Where each document ends in the text, in bytes."""
        return self.column("ends", np.int64)

    def column(self, name: str, dtype: Any) -> NDArray[Any]:
        """A column, mapped; empty where the spool has none."""
        path = self._folder / f"{name}.npy"
        return np.load(path, mmap_mode="r") if path.exists() else np.empty(0, dtype=dtype)

    def texts(self, begin: int, end: int) -> Iterator[str]:
        """Texts of documents `begin` to `end` - 1."""
        with (self._folder / "text.bin").open("rb") as file:
            start = int(self.ends[begin - 1]) if begin else 0
            file.seek(start)
            for stop in self.ends[begin:end].tolist():
                yield file.read(stop - start).decode("utf-8")
                start = stop
