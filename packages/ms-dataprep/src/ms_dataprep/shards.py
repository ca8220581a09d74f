"""Shard files: written full one after the other, each hashed, counted and brought to disk before it is named."""

import hashlib
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.manifest import Shard
from ms_dataprep.mindrecord import INDEX_ENDING, write_rows


class ShardWriter:
    """Collects rows and writes them as `shard-00000.mindrecord`, `shard-00001.mindrecord`, ... into a folder."""

    def __init__(self, folder: Path, *, layout: str, rows_per_shard: int) -> None:
        self.shards: list[Shard] = []
        self._folder = folder
        self._layout = layout
        self._rows_per_shard = rows_per_shard
        self._waiting: list[NDArray[np.int32]] = []
        self._num_waiting = 0

    def add(self, rows: NDArray[np.int32]) -> None:
        """Takes rows, int32 [rows, row_length]; writes each shard that is full."""
        while len(rows):
            room = self._rows_per_shard - self._num_waiting
            self._waiting.append(rows[:room])
            self._num_waiting += len(rows[:room])
            rows = rows[room:]
            if self._num_waiting == self._rows_per_shard:
                self._write()

    def finish(self) -> list[Shard]:
        """Writes what is left and returns all shards."""
        if self._num_waiting:
            self._write()
        return self.shards

    def _write(self) -> None:
        path = self._folder / f"shard-{len(self.shards):05d}.mindrecord"
        write_rows(path, np.concatenate(self._waiting), self._layout)
        for file in (path, path.with_name(path.name + INDEX_ENDING)):
            file.chmod(0o644)  # MindSpore leaves 0600, which locks out other users of a cluster
            sync(file)
        shard = Shard(file=path.name, rows=self._num_waiting, bytes=path.stat().st_size, sha256=hash_file(path))
        self.shards.append(shard)
        self._waiting, self._num_waiting = [], 0


def hash_file(path: Path) -> str:
    """`sha256:...` of a file."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Brings a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
