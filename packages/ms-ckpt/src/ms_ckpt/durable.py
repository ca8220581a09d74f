"""Files and folders that are on disk when a call returns."""

import os
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file and fsyncs it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the folder's list of names durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
