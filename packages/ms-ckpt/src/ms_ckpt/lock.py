"""One writer at a time under a root.

The lock (flock) is on the root folder itself, so it leaves no file behind and the kernel drops it when its holder ends,
however it ends: a lock cannot go stale. NFS carries such locks between machines. On a file system without locks saves
go on without one: every save has a temporary folder of its own and appears by one rename, so nothing is torn either.
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ms_ckpt.errors import SaveError
from ms_ckpt.staging import saves_under_way

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05


@contextmanager
def root_lock(root: Path, wait_seconds: float) -> Iterator[None]:
    """Holds the lock of a root; raises SaveError, naming who holds it, when it is not free in time."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _acquire(descriptor, root, wait_seconds)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, root: Path, wait_seconds: float) -> None:
    waited_since = time.monotonic()  # not the wall clock, which may go backwards
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() - waited_since >= wait_seconds:
                holders = ", ".join(saves_under_way(root)) or "a process that has not begun to write"
                raise SaveError(
                    f"{root}: another process has been saving here for {wait_seconds} s ({holders}); "
                    "give each run a folder of its own, or raise checkpoint.lock_seconds"
                ) from error
            time.sleep(_POLL_SECONDS)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            _log.warning("%s: this file system has no locks (%s); saving without one", root, error.strerror)
            return
