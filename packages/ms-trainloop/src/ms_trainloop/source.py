"""Where batches come from: any position, asked for again where an iterable ends, with the time spent waiting."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ms_trainloop.errors import BatchError

Batches = Callable[[int], Iterable[Mapping[str, np.ndarray[Any, Any]]]]
"""`batches(samples)` gives batches of contract `batch` from that global sample number on."""


class BatchSource:
    """Batches from a sample number on, with the time spent waiting for them."""

    def __init__(self, batches: Batches, samples: int, clock: Callable[[], float]) -> None:
        """Starts at global sample number `samples`; nothing is asked for before the first `take`."""
        self._batches = batches
        self._iterator: Iterator[Mapping[str, np.ndarray[Any, Any]]] | None = None
        self._clock = clock
        self.samples = samples
        self.waited = 0.0

    def take(self, samples: int) -> Mapping[str, np.ndarray[Any, Any]]:
        """Returns the next batch, which stands for `samples` rows over all ranks; BatchError if there is none."""
        start = self._clock()
        batch = None if self._iterator is None else next(self._iterator, None)
        if batch is None:
            self._iterator = iter(self._batches(self.samples))
            batch = next(self._iterator, None)
        if batch is None:
            raise BatchError(
                f"batches({self.samples}) gave no batch; the data is shorter than train.steps needs, or empty"
            )
        self.waited += self._clock() - start
        self.samples += samples
        return batch
