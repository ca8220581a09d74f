"""A mixture of datasets by weight: which dataset a global sample comes from, known for any sample at once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.errors import ConfigError
from ms_dataprep.order import Order

_LARGEST_BLOCK = 1 << 20
_SMALLEST_SHARE = 1e-5


class Mixture:
    """Deals global sample numbers to datasets.

    Samples are dealt in blocks. A block holds a fixed number of samples of each dataset, its weight rounded to one in
    a thousand of the smallest weight or better, and a permutation of the block (that of contract `batch`, with the
    block's number as its epoch) says in which order. So counts follow the weights exactly after every block, no
    dataset is starved, and a position is reached without what came before it.

    Attributes:
        counts: samples of each dataset in one block.
    """

    def __init__(self, weights: Sequence[float], *, seed: int) -> None:
        """Weights are positive numbers of any sum; raises ConfigError for others, and for one below 0.00001 of it."""
        given = np.array(weights, dtype=np.float64)
        if not len(given) or not np.isfinite(given).all() or (given <= 0).any():
            raise ConfigError(f"weights: expected positive numbers, found {list(weights)}")
        shares = given / given.sum()
        if shares.min() < _SMALLEST_SHARE:
            raise ConfigError(
                f"weights: {given[shares.argmin()]} is {shares.min():.1e} of all; below {_SMALLEST_SHARE} leave the "
                "dataset out, or join it with another"
            )
        block = min(_LARGEST_BLOCK, int(np.ceil(1000 / shares.min())))
        counts = np.floor(shares * block + 1e-9).astype(np.int64)
        largest_rests = np.argsort(counts - shares * block, kind="stable")
        counts[largest_rests[: block - counts.sum()]] += 1
        self.counts = counts
        self._seed = seed
        self._block = block
        self._ends = np.cumsum(counts)

    def deal(self, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each global sample number, the dataset's number and the sample number within that dataset (int64)."""
        blocks, places = np.divmod(samples, self._block)
        slots = np.empty(len(samples), dtype=np.int64)
        for block in np.unique(blocks).tolist():
            here = blocks == block
            slots[here] = Order(self._block, seed=self._seed, epoch=block).rows(places[here])
        datasets = np.searchsorted(self._ends, slots, side="right")
        within = slots - (self._ends - self.counts)[datasets]
        return datasets, blocks * self.counts[datasets] + within
