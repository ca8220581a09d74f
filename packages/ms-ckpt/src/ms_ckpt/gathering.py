"""Where several processes that share a disk meet to write one checkpoint, without any other channel between them.

Rank 0 makes the temporary folder of the save and announces it in `gather.json`, with a beat that it goes on changing:
a folder whose beat stands still was left behind by a killed job, and nobody joins it (no clocks are compared). Each
other rank writes its tensor file there, fsyncs it and leaves `rank-00001.part`; or `rank-00001.failed` with the
reason. Rank 0 takes these notes away and commits when all parts are there. That the folder was renamed, and not
removed, tells the others that all went well.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ms_ckpt.block import Content, blocks_of, rank_file, write_blocks
from ms_ckpt.durable import sync_folder, write_file
from ms_ckpt.errors import InvalidCheckpointError, SaveError
from ms_ckpt.index import Index

_ANNOUNCEMENT = "gather.json"
_BEAT_SECONDS = 0.1
_POLL_SECONDS = 0.02
_SLOW_POLL_SECONDS = 0.25  # after a while: a thousand ranks must not keep a file server busy


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """Who saves together: what all ranks must agree about."""

    step: int
    world_size: int
    run: str = ""
    """Any text that the ranks of one launch share and those of another do not."""


@contextmanager
def announced(staged: Path, gathering: Gathering) -> Iterator[None]:
    """Rank 0: invites the others into the temporary folder; the invitation is withdrawn at the end."""
    is_over = threading.Event()
    _beat(staged, gathering, 0)
    heart = threading.Thread(target=_keep_beating, args=(staged, gathering, is_over), name="ms-ckpt-gather")
    heart.start()
    try:
        yield
    finally:
        is_over.set()
        heart.join()
        (staged / _ANNOUNCEMENT).unlink(missing_ok=True)


def collect_parts(staged: Path, gathering: Gathering, wait_seconds: float) -> dict[int, Index]:
    """Rank 0: the durable parts of all other ranks, by rank; their notes are removed.

    Raises SaveError that names every missing rank, or the rank that failed and why.
    """
    waiting = _Patience(wait_seconds)
    missing = set(range(1, gathering.world_size))
    parts: dict[int, Index] = {}
    while missing:
        for rank in sorted(missing):
            note = _note(staged, rank, "part")
            if note.exists():
                parts[rank] = _read_part(note, rank, gathering)
                note.unlink()
            elif (failed := _note(staged, rank, "failed")).exists():
                raise SaveError(f"step {gathering.step} was not saved: rank {rank} could not: {failed.read_text()}")
        missing -= parts.keys()
        if missing and waiting.is_over():
            names = ", ".join(map(str, sorted(missing)))
            raise SaveError(
                f"step {gathering.step} was not saved: no part of rank {names} (of {gathering.world_size}) "
                f"within {wait_seconds:g} s; earlier checkpoints are untouched"
            )
        if missing:
            waiting.pause()
    return parts


def join_gathering(root: Path, gathering: Gathering, wait_seconds: float) -> Path:
    """Another rank: the folder that rank 0 announced; raises SaveError if it does not in time."""
    waiting = _Patience(wait_seconds)
    beats: dict[Path, int] = {}
    others: set[str] = set()
    while True:
        for path in root.glob(f".saving-*/{_ANNOUNCEMENT}"):
            with suppress(OSError, ValueError, KeyError, TypeError):  # being made or removed at this moment
                said = json.loads(path.read_text())
                found = Gathering(step=said["step"], world_size=said["world_size"], run=said["run"])
                if found != gathering:
                    others.add(f"step {found.step} of {found.world_size} ranks, run {found.run!r}")
                elif beats.setdefault(path, said["beat"]) != said["beat"]:
                    return path.parent
        if waiting.is_over():
            seen = f"; seen were {', '.join(sorted(others))}" if others else ""
            raise SaveError(
                f"step {gathering.step} was not saved: rank 0 (of {gathering.world_size}, run {gathering.run!r}) has "
                f"not begun to save it under {root} within {wait_seconds:g} s{seen}; all ranks must save the same "
                "steps, on storage that they share"
            )
        waiting.pause()


def contribute(staged: Path, rank: int, gathering: Gathering, tensors: Mapping[str, Content]) -> None:
    """Another rank: writes its part, durable before rank 0 can see it; a failure is told to rank 0 and raised."""
    try:
        file, written = write_blocks(staged, rank, blocks_of(tensors))
        index = Index(
            step=gathering.step,
            files={rank_file(rank): file},
            tensors=written,
            rank=rank,
            world_size=gathering.world_size,
        )
        _leave(_note(staged, rank, "part"), index.to_bytes())
    except BaseException as error:
        with suppress(OSError):  # a full disk may refuse even this; rank 0 then names this rank as missing
            _leave(_note(staged, rank, "failed"), f"{type(error).__name__}: {error}".encode())
        raise


@contextmanager
def outcome(staged: Path, final: Path, wait_seconds: float) -> Iterator[None]:
    """Another rank: at the end, returns when rank 0 has committed; raises SaveError if it gave up or went silent."""
    status = staged.stat()
    identity = (status.st_dev, status.st_ino)
    yield
    waiting = _Patience(wait_seconds)
    while True:
        is_gone = not staged.exists() or _identity(staged) != identity  # asked first: a rename changes both at once
        if _identity(final) == identity:
            return
        if is_gone:
            raise SaveError(f"{final}: rank 0 did not commit this step; its own error says why")
        if waiting.is_over():
            raise SaveError(f"{final}: rank 0 has not committed this step within {wait_seconds:g} s")
        waiting.pause()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _note(staged: Path, rank: int, kind: str) -> Path:
    return staged / f"rank-{rank:05d}.{kind}"


def _leave(note: Path, data: bytes) -> None:
    """A note appears whole or not at all."""
    unfinished = note.with_suffix(".writing")
    unfinished.unlink(missing_ok=True)
    write_file(unfinished, data)
    unfinished.rename(note)
    sync_folder(note.parent)


def _read_part(note: Path, rank: int, gathering: Gathering) -> Index:
    try:
        part = Index.from_bytes(note.read_bytes(), note.name)
    except InvalidCheckpointError as error:
        raise SaveError(f"step {gathering.step} was not saved: {error}") from error
    found = (part.step, part.rank, part.world_size)
    if found != (gathering.step, rank, gathering.world_size):
        raise SaveError(f"step {gathering.step} was not saved: {note.name} says step, rank, world size {found}")
    return part


def _beat(staged: Path, gathering: Gathering, beat: int) -> None:
    unfinished = staged / f"{_ANNOUNCEMENT}.writing"
    unfinished.write_text(json.dumps({**vars(gathering), "beat": beat}))
    unfinished.rename(staged / _ANNOUNCEMENT)


def _keep_beating(staged: Path, gathering: Gathering, is_over: threading.Event) -> None:
    beat = 0
    while not is_over.wait(_BEAT_SECONDS):
        beat += 1
        with suppress(OSError):  # a full disk: the parts will say so
            _beat(staged, gathering, beat)
    (staged / f"{_ANNOUNCEMENT}.writing").unlink(missing_ok=True)


class _Patience:
    """How long to wait, and how often to look; by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since = time.monotonic()

    def is_over(self) -> bool:
        return time.monotonic() - self._since >= self._seconds

    def pause(self) -> None:
        is_early = time.monotonic() - self._since < 1
        time.sleep(_POLL_SECONDS if is_early else _SLOW_POLL_SECONDS)
