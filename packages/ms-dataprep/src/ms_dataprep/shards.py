"""Shard files: written whole in a folder of their own, hashed, counted and brought to disk before they are moved."""

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.manifest import Shard
from ms_dataprep.mindrecord import INDEX_ENDING, FileSizes, write_rows


def write_shard(folder: Path, number: int, rows: NDArray[np.int32], *, layout: str, sizes: FileSizes) -> Shard:
    """Writes `shard-00000.mindrecord` (of that number) and its index into a folder; what a killed try left is replaced.

    Args:
        folder: where the shard appears when it is complete.
        number: of the shard.
        rows: int32 [rows, row_length], at least one.
        layout: `int32` or `bytes`.
        sizes: the same for all shards of a dataset.
    """
    name = f"shard-{number:05d}.mindrecord"
    writing = folder / f".writing-{number:05d}"
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    path = writing / name
    write_rows(path, rows, layout, sizes)
    for file in (path, path.with_name(name + INDEX_ENDING)):
        file.chmod(0o644)  # MindSpore leaves 0600, which locks out other users of a cluster
        sync(file)
    shard = Shard(file=name, rows=len(rows), bytes=path.stat().st_size, sha256=hash_file(path))
    path.replace(folder / name)
    path.with_name(name + INDEX_ENDING).replace(folder / (name + INDEX_ENDING))
    writing.rmdir()
    return shard


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
