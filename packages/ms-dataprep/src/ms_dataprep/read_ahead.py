"""Reading ahead: batches made in worker threads while the caller trains, handed out in order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def read_ahead(make: Callable[[K], V], keys: Iterable[K], *, depth: int, num_threads: int) -> Iterator[V]:
    """Yields `make(key)` of each key in order, with up to `depth` of them made before they are asked for.

    An error of `make` is raised in its turn; ending the iteration early waits for what is under way only.

    Args:
        make: thread-safe.
        keys: may be endless.
        depth: values kept ready, 1 or more.
        num_threads: threads that make them.
    """
    waiting: deque[Future[V]] = deque()
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="ms-dataprep")
    try:
        for key in keys:
            waiting.append(pool.submit(make, key))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
