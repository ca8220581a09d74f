"""Processes that somebody else started, watched through /proc: whether they live, and how they ended."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Status:
    """A process as /proc shows it."""

    is_running: bool
    exit_code: int | None
    """Once it ended: its code, or 128 + the signal that killed it; None if its parent has collected it already."""


def status(pid: int) -> Status:
    """Whether a process runs, and how it ended as long as its parent has not collected it."""
    fields = _stat(pid)
    if fields is None:
        return Status(is_running=False, exit_code=None)
    if fields[0] not in ("Z", "X"):
        return Status(is_running=True, exit_code=None)
    code = int(fields[-1])  # as wait(2) reports it; proc(5), field 52
    return Status(is_running=False, exit_code=128 + (code & 0x7F) if code & 0x7F else code >> 8)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (the name before it may hold spaces and brackets)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
