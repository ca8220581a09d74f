"""The temporary folder in which a checkpoint is built, and what becomes of those that a killed save left behind.

A save holds a lock (flock) on its temporary folder; the kernel drops it when the process ends, however it ends. A
folder that nobody locks is an orphan. Locks do not reach across machines, so another host's folder is an orphan only
when it has not been touched for a day.
"""

import ctypes
import errno
import fcntl
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from ms_ckpt.durable import sync_folder
from ms_ckpt.folder import folder_name

_log = logging.getLogger(__name__)
_NAME = re.compile(r"\.saving-step-\d{8,}-(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}")
_FOREIGN_ORPHAN_SECONDS = 24 * 3600
_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100  # linux/fcntl.h


@contextmanager
def staging_folder(root: Path, step: int) -> Iterator[Path]:
    """A new, locked, empty folder beside the checkpoints; removed at the end unless it was published."""
    path, lock = _create(root, step)
    try:
        yield path
    finally:
        # After a publication the path is gone, or holds the checkpoint that was replaced.
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def publish(staged: Path, final: Path) -> None:
    """Gives the staged folder its final name in one step; a folder of that name changes places with it.

    Raises OSError if the file system cannot do that.
    """
    if final.exists():
        _exchange(staged, final)
    else:
        staged.rename(final)
    sync_folder(final.parent)


def discard(folder: Path) -> None:
    """Deletes a checkpoint: it vanishes from readers by one rename, so a kill in between leaves only an orphan."""
    root = folder.parent
    grave = root / _new_name(int(folder.name.removeprefix("step-")))
    folder.rename(grave)
    sync_folder(root)
    shutil.rmtree(grave)


def sweep_orphans(root: Path) -> list[Path]:
    """Removes the temporary folders of saves that were killed; returns them. Those under way are left alone."""
    swept = []
    for path in sorted(root.glob(".saving-step-*")):
        if _is_orphan(path):
            shutil.rmtree(path, ignore_errors=True)
            _log.info("removed %s, left behind by a save that was killed", path)
            swept.append(path)
    return swept


def saves_under_way(root: Path) -> list[str]:
    """Who is saving under the root, `host:process id` each."""
    matches = [_NAME.fullmatch(path.name) for path in sorted(root.glob(".saving-step-*")) if not _is_orphan(path)]
    return [f"{match['host']}:{match['pid']}" for match in matches if match]


def _create(root: Path, step: int) -> tuple[Path, int]:
    while True:
        path = root / _new_name(step)
        path.mkdir()
        with suppress(FileNotFoundError):  # a sweep came between the two calls: try again
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # no locks on this file system: the process id in the name decides
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                return path, lock
            os.close(lock)


def _new_name(step: int) -> str:
    return f".saving-{folder_name(step)}-{socket.gethostname()}-{os.getpid()}-{token_hex(4)}"


def _is_orphan(path: Path) -> bool:
    match = _NAME.fullmatch(path.name)
    if match is None:
        return False
    try:
        if match["host"] != socket.gethostname():
            return time.time() - path.stat().st_mtime > _FOREIGN_ORPHAN_SECONDS
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone meanwhile, or not ours to open
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return not Path(f"/proc/{match['pid']}").exists()
    finally:
        os.close(descriptor)


def _exchange(first: Path, second: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE)
    if result != 0:
        code = ctypes.get_errno()
        reason = os.strerror(code)
        if code == errno.EINVAL:
            reason = "this file system cannot exchange two folders; delete the old one first"
        raise OSError(code, reason, str(first), None, str(second))
