"""Engines: where tasks run. All give the same results in the order of the tasks; none changes what a task does."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, get_context, parent_process
from typing import Any, Protocol, TypeVar

from ms_dataprep.errors import DataprepError, UnfinishedError

T = TypeVar("T")
R = TypeVar("R")
Advance = Callable[[int, int], None]
Work = Callable[[T, Advance], R]


class Engine(Protocol):
    """Runs tasks."""

    def run(
        self, make_work: Callable[..., Work[T, R]], arguments: tuple[Any, ...], tasks: Sequence[T], advance: Advance
    ) -> Iterator[tuple[T, R]]:
        """Yields each task with its result as soon as it is there, in any order.

        Args:
            make_work: called once a worker with `arguments`; gives the function that does one task. Importable.
            arguments: plain values.
            tasks: what to do.
            advance: told bytes and documents that were done since it was last told.

        Raises:
            DataprepError: what a task raised, or a worker died.
        """


class InlineEngine:
    """Runs tasks one after the other in this process."""

    def run(
        self, make_work: Callable[..., Work[T, R]], arguments: tuple[Any, ...], tasks: Sequence[T], advance: Advance
    ) -> Iterator[tuple[T, R]]:
        """See `Engine`."""
        if tasks:
            work = make_work(*arguments)
            for task in tasks:
                yield task, work(task, advance)


class ProcessEngine:
    """Runs tasks in processes of this machine; progress moves on with each task that ends."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def run(
        self, make_work: Callable[..., Work[T, R]], arguments: tuple[Any, ...], tasks: Sequence[T], advance: Advance
    ) -> Iterator[tuple[T, R]]:
        """See `Engine`."""
        if not tasks:
            return
        num_workers = min(self._num_workers, len(tasks))
        num_threads = max(1, (os.cpu_count() or 1) // num_workers)
        pool = ProcessPoolExecutor(
            num_workers, get_context("spawn"), initializer=_begin, initargs=(num_threads, make_work, arguments)
        )
        try:
            waiting = {pool.submit(_do, task): task for task in tasks}
            while waiting:
                for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                    result, num_bytes, num_documents = future.result()
                    advance(num_bytes, num_documents)
                    yield waiting.pop(future), result
        except BrokenProcessPool as error:
            raise UnfinishedError(
                "a worker process died (killed, or out of memory); go on with --resume, and fewer workers if memory "
                "was short"
            ) from error
        except BaseException:
            for process in list((pool._processes or {}).values()):  # no public way to end running tasks before 3.14
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


class RayEngine:
    """Runs tasks as actors of a Ray cluster, which must see the same files under the same paths.

    Connects to the cluster that RAY_ADDRESS names, or starts one on this machine.
    """

    def __init__(self, num_workers: int) -> None:
        """Raises DataprepError without Ray."""
        try:
            import ray
        except ImportError as error:
            raise DataprepError('--engine ray needs Ray; pip install "ms-dataprep[ray]"') from error
        self._ray: Any = ray
        self._num_workers = num_workers

    def run(
        self, make_work: Callable[..., Work[T, R]], arguments: tuple[Any, ...], tasks: Sequence[T], advance: Advance
    ) -> Iterator[tuple[T, R]]:
        """See `Engine`."""
        if not tasks:
            return
        if not self._ray.is_initialized():
            try:
                self._ray.init(include_dashboard=False, log_to_driver=False)
            except Exception as error:  # Ray raises plain Exception when its processes are too slow to start
                raise UnfinishedError(
                    f"Ray does not start: {' '.join(str(error).split())} Start one with `ray start --head` and set "
                    "RAY_ADDRESS, or try again with --resume"
                ) from error
        worker = self._ray.remote(num_cpus=1)(_RayWorker)
        actors = [worker.remote(make_work, arguments) for _ in range(min(self._num_workers, len(tasks)))]
        queue = list(enumerate(tasks))[::-1]
        running: dict[Any, tuple[Any, int]] = {}
        try:
            for actor in actors:
                number, task = queue.pop()
                running[actor.do.remote(task)] = (actor, number)
            while running:
                (done,), _ = self._ray.wait(list(running), num_returns=1)
                actor, number = running.pop(done)
                result, num_bytes, num_documents = self._get(done)
                advance(num_bytes, num_documents)
                yield tasks[number], result
                if queue:
                    following, task = queue.pop()
                    running[actor.do.remote(task)] = (actor, following)
        finally:
            for actor in actors:
                self._ray.kill(actor)

    def _get(self, done: Any) -> Any:
        try:
            return self._ray.get(done)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            raise UnfinishedError(f"a Ray worker died: {' '.join(str(error).split())}; go on with --resume") from error


class _RayWorker:
    def __init__(self, make_work: Callable[..., Work[Any, Any]], arguments: tuple[Any, ...]) -> None:
        self._work = make_work(*arguments)

    def do(self, task: Any) -> tuple[Any, int, int]:
        return _do_counted(self._work, task)


_work: Work[Any, Any] | None = None  # of this worker process


def _begin(num_threads: int, make_work: Callable[..., Work[Any, Any]], arguments: tuple[Any, ...]) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # of the tokenizer library
    _work = make_work(*arguments)


def _end_with_parent() -> None:
    """A worker whose parent was killed must not go on writing beside the build that resumes."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _do(task: Any) -> tuple[Any, int, int]:
    assert _work is not None
    return _do_counted(_work, task)


def _do_counted(work: Work[Any, Any], task: Any) -> tuple[Any, int, int]:
    done = [0, 0]

    def advance(num_bytes: int, num_documents: int) -> None:
        done[0] += num_bytes
        done[1] += num_documents

    result = work(task, advance)
    return result, done[0], done[1]
