"""Publishing a folder: built beside its final place, put there by one rename, and never half replaced."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ms_dataprep import manifest
from ms_dataprep.errors import DatasetError, UnfinishedError
from ms_dataprep.shards import sync


@contextmanager
def publish_folder(output: Path, *, overwrite: bool, resume: bool = False) -> Iterator[Path]:
    """Gives a temporary folder to build in; it becomes `output` when the block ends without an error.

    An error removes it; an interruption (Ctrl-C, a kill) leaves it for `resume`, without which the next build clears
    it. A lock keeps two builds apart.

    Raises:
        DatasetError: `output` holds files (with `overwrite`: files that are no dataset), or another build writes it.
    """
    old = _old_name(output)
    if old.exists() and not output.exists():
        old.rename(output)  # a build was killed between the two renames of a replacement
    refuse_used_folder(output, overwrite=overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    building = output.with_name(f".{output.name}.building")
    building.mkdir(exist_ok=True)
    lock = os.open(building, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DatasetError(f"{output}: another build is writing it ({building}); wait for it or end it") from error
        if not resume:
            _clear(building)
        try:
            yield building
            refuse_used_folder(output, overwrite=overwrite)
        except (KeyboardInterrupt, UnfinishedError):
            raise
        except BaseException:
            shutil.rmtree(building)
            raise
        sync(building)
        _replace(building, output)
    finally:
        os.close(lock)


def refuse_used_folder(output: Path, *, overwrite: bool) -> None:
    """Raises DatasetError unless `output` is free, or a dataset that may be overwritten."""
    if output.exists() and not output.is_dir():
        raise DatasetError(f"{output}: is a file, expected a folder to write")
    if not output.is_dir() or not any(output.iterdir()):
        return
    if not overwrite:
        raise DatasetError(f"{output}: is not empty; choose another folder or give --overwrite to replace the dataset")
    if not (output / manifest.FILE).is_file():
        raise DatasetError(
            f"{output}: holds files but no {manifest.FILE}, so it is not overwritten; remove it yourself"
        )


def _replace(building: Path, output: Path) -> None:
    old = _old_name(output)
    if old.exists():
        shutil.rmtree(old)
    if output.exists():
        output.rename(old)
    building.rename(output)
    sync(output.parent)
    if old.exists():
        shutil.rmtree(old)


def _old_name(output: Path) -> Path:
    return output.with_name(f".{output.name}.replaced")


def _clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
