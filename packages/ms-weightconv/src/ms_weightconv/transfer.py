"""Transfer of tensors into files by several threads: each at its own place, in any order, so that work can be resumed.

A safetensors file's places are known before its first tensor is: the file is reserved whole, and every thread writes
the tensor it has. What is finished stands in a journal with its checksum. All of it is read back at the end.
"""

import errno
import json
import logging
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from ms_weightconv.errors import TargetError
from ms_weightconv.progress import Progress
from ms_weightconv.tensor import Tensor, blocks, check_words
from ms_weightconv.tensorfile import lay_out
from ms_weightconv.words import CastLoss

LOGGER = logging.getLogger(__name__)
_VERIFY_BYTES = 1 << 20  # of one read; stays in the cache of a core
_FLUSH_BYTES = 1 << 29  # smaller ones made writing wait for the disk, none left all waiting to the end
JOURNAL_FILE = "journal.jsonl"
_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_LEAST_BUDGET = 24 << 20  # bytes of tensors under way at a time, if none is larger


@dataclass(frozen=True, kw_only=True)
class _Job:
    file: str
    name: str
    tensor: Tensor
    offset: int


def transfer(
    folder: Path,
    files: Mapping[str, Mapping[str, Tensor]],
    metadata: Mapping[str, str],
    *,
    workers: int,
    is_shown: bool,
    losses: MutableMapping[str, CastLoss],
) -> dict[str, int]:
    """Writes safetensors files, flushes them and reads them back; what an interrupted run finished is kept.

    Args:
        folder: where to; it may hold files and a journal of a run with the same plan.
        files: tensors by name, by file name.
        metadata: `__metadata__` of each file.
        workers: threads.
        is_shown: whether to show progress.
        losses: what casts lost, filled while tensors are read; kept in the journal.

    Returns:
        The crc32 of each tensor.

    Raises:
        TargetError: a tensor is not what it announced, or did not come back as it was written.
    """
    jobs: list[_Job] = []
    descriptors: dict[str, int] = {}
    journal = _Journal(folder / JOURNAL_FILE, losses)
    try:
        for file, tensors in files.items():
            header, offsets = lay_out(tensors, metadata)
            end = max((offsets[name] + tensor.num_bytes for name, tensor in tensors.items()), default=0)
            size = max(end, len(header))
            descriptors[file] = _reserve(folder / file, header, size)
            jobs += [
                _Job(file=file, name=name, tensor=tensors[name], offset=offset)
                for name, offset in sorted(offsets.items(), key=lambda item: item[1])
            ]
        done = journal.read()
        finished = {job.name: done[job.file, job.name] for job in jobs if (job.file, job.name) in done}
        total = sum(job.tensor.num_bytes for job in jobs)
        if finished:
            LOGGER.info("resumed: %d of %d tensors were written already", len(finished), len(jobs))
        with _Flusher(descriptors.values()) as flusher:
            with Progress("convert", total, is_shown) as progress:
                written = _in_threads(
                    workers,
                    [job for job in jobs if job.name not in finished],
                    lambda job: _write(descriptors[job.file], job, journal, progress, flusher),
                )
            flusher.finish()  # goes on while what was written is read back
            checksums = finished | written
            with Progress("verify", total, is_shown) as progress:
                _in_threads(workers, jobs, lambda job: _verify(folder, descriptors, job, checksums, progress))
    finally:
        journal.close()
        for descriptor in descriptors.values():
            os.close(descriptor)
    (folder / JOURNAL_FILE).unlink()
    return checksums


def _reserve(path: Path, header: bytes, size: int) -> int:
    """Opens a file of a known size; a file of an earlier run with the same header is kept."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size != size or os.pread(descriptor, len(header), 0) != header:
            os.ftruncate(descriptor, 0)
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                if error.errno not in _CANNOT_RESERVE:
                    raise
                os.ftruncate(descriptor, size)
            _write_all(descriptor, header, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write(descriptor: int, job: _Job, journal: "_Journal", progress: Progress, flusher: "_Flusher") -> int:
    words = job.tensor.read()
    check_words(job.name, words, job.tensor)
    crc, at = 0, job.offset
    for block in blocks(words):
        _write_all(descriptor, block, at)
        crc, at = zlib.crc32(block, crc), at + len(block)
    journal.add(job, crc)
    flusher.add(job.tensor.num_bytes)
    progress.add(job.tensor.num_bytes)
    return crc


def _write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def _verify(
    folder: Path, descriptors: Mapping[str, int], job: _Job, checksums: Mapping[str, int], progress: Progress
) -> int:
    crc, at, end = 0, job.offset, job.offset + job.tensor.num_bytes
    buffer = memoryview(bytearray(min(_VERIFY_BYTES, job.tensor.num_bytes)))
    while at < end:
        count = os.preadv(descriptors[job.file], [buffer[: min(len(buffer), end - at)]], at)
        if not count:
            break
        crc, at = zlib.crc32(buffer[:count], crc), at + count
    if at < end or crc != checksums[job.name]:
        raise TargetError(
            f"{folder / job.file}: {job.name} came back with other bytes than were written; is the disk sound?"
        )
    progress.add(job.tensor.num_bytes)
    return crc


def _in_threads(workers: int, jobs: list[_Job], action: Callable[[_Job], int]) -> dict[str, int]:
    budget = _Budget(max([_LEAST_BUDGET, *(job.tensor.num_bytes for job in jobs)]))
    stopped = threading.Event()

    def run(job: _Job) -> tuple[str, int] | None:
        with budget.of(job.tensor.num_bytes):
            return None if stopped.is_set() else (job.name, action(job))

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(run, job) for job in jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            if any(future.done() and future.exception() for future in futures) or not all(
                future.done() for future in futures
            ):
                stopped.set()
    results = [future.result() for future in futures]
    return dict(result for result in results if result is not None)


class _Budget:
    """Lets threads in as long as the bytes that they hold together stay below a limit."""

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes
        self._changed = threading.Condition()

    @contextmanager
    def of(self, num_bytes: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: num_bytes <= self._left)
            self._left -= num_bytes
        try:
            yield
        finally:
            with self._changed:
                self._left += num_bytes
                self._changed.notify_all()


class _Flusher:
    """Sends what was written to the disk while more is written and read back; the last word is a whole fsync.

    A copy of 1 GB that flushes at its end waits as long for the disk as it took to write.
    """

    def __init__(self, descriptors: Iterable[int]) -> None:
        self._descriptors = list(descriptors)
        self._waiting, self._is_last = 0, False
        self._changed = threading.Condition()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="flusher")

    def add(self, num_bytes: int) -> None:
        with self._changed:
            self._waiting += num_bytes
            self._changed.notify()

    def finish(self) -> None:
        with self._changed:
            self._is_last = True
            self._changed.notify()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        is_last = False
        try:
            while not is_last:
                with self._changed:
                    self._changed.wait_for(lambda: self._is_last or self._waiting >= _FLUSH_BYTES)
                    self._waiting, is_last = 0, self._is_last
                for descriptor in self._descriptors:
                    (os.fsync if is_last else os.fdatasync)(descriptor)
        except OSError as error:
            self._error = error


class _Journal:
    """One line a finished tensor: its file, name and checksum, and what casts have lost since the line before."""

    def __init__(self, path: Path, losses: MutableMapping[str, CastLoss]) -> None:
        self._path, self._losses = path, losses
        self._noted: set[str] = set()
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def read(self) -> dict[tuple[str, str], int]:
        done = {}
        for line in self._path.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the last line of a run that was killed
            done[entry["file"], entry["name"]] = entry["crc32"]
            self._losses.update({name: CastLoss(**loss) for name, loss in entry["losses"].items()})
        self._noted = set(self._losses)
        return done

    def add(self, job: _Job, crc: int) -> None:
        with self._lock:
            fresh = {name: asdict(loss) for name, loss in list(self._losses.items()) if name not in self._noted}
            self._noted.update(fresh)
            entry = {"file": job.file, "name": job.name, "crc32": crc, "losses": fresh}
            os.write(self._descriptor, b"\n" + json.dumps(entry).encode())

    def close(self) -> None:
        os.close(self._descriptor)
