"""The order of training rows: a keyed permutation of any position, in constant memory (contract `batch`)."""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_NUM_ROUNDS = 8
_WINDOWS_KEPT = 4


class Order:
    """The permutation of `num_rows` rows that belongs to (seed, epoch): a Feistel network with cycle walking."""

    def __init__(self, num_rows: int, *, seed: int, epoch: int) -> None:
        if num_rows < 1:
            raise ValueError(f"num_rows: expected 1 or more, found {num_rows}")
        half = max(1, ((num_rows - 1).bit_length() + 1) // 2)
        base = _mix((_mix((seed + _GOLDEN) & _MASK) + epoch + _GOLDEN) & _MASK)
        keys = [_mix((base + number + _GOLDEN) & _MASK) for number in range(_NUM_ROUNDS)]
        self._num_rows = np.uint64(num_rows)
        self._half = np.uint64(half)
        self._mask = np.uint64((1 << half) - 1)
        self._keys = np.array(keys, dtype=np.uint64)

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row numbers (int64) at positions 0 to `num_rows` - 1 of the epoch."""
        values = self._step(positions.astype(np.uint64))
        while (outside := values >= self._num_rows).any():
            values[outside] = self._step(values[outside])
        return values.astype(np.int64)

    def _step(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mix_array(right + key) & self._mask)
        return (left << self._half) | right


class SampleOrder:
    """Row numbers of global sample numbers, which run on through the epochs.

    They are computed up to 4096 at a time: 16 alone cost as much as 1000 together, most of it calls.
    """

    def __init__(self, num_rows: int, *, seed: int, shuffle: bool = True) -> None:
        """Of a dataset of `num_rows`; without `shuffle`, every epoch is in file order."""
        self._num_rows = num_rows
        self._seed = seed
        self._shuffle = shuffle
        self._window_size = max(64, min(4096, num_rows))  # of a small dataset it would span many epochs
        self._windows: OrderedDict[int, NDArray[np.int64]] = OrderedDict()

    def rows(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row numbers (int64) of sample numbers (int64, each 0 or more)."""
        if not self._shuffle:
            return samples % self._num_rows
        windows, places = np.divmod(samples, self._window_size)
        rows = np.empty(len(samples), dtype=np.int64)
        for window in np.unique(windows).tolist():
            here = windows == window
            rows[here] = self._window(window)[places[here]]
        return rows

    def _window(self, number: int) -> NDArray[np.int64]:
        found = self._windows.get(number)
        if found is None:
            samples = number * self._window_size + np.arange(self._window_size)
            found = rows_at(samples, self._num_rows, seed=self._seed)
            self._windows[number] = found
            while len(self._windows) > _WINDOWS_KEPT:
                self._windows.popitem(last=False)
        return found


def rows_at(samples: NDArray[np.int64], num_rows: int, *, seed: int) -> NDArray[np.int64]:
    """Row numbers (int64) of global sample numbers in the shuffled order.

    Args:
        samples: int64, each 0 or more.
        num_rows: rows of the dataset.
        seed: with the epoch, the whole of the randomness.
    """
    epochs, positions = np.divmod(samples, num_rows)
    rows = np.empty(len(samples), dtype=np.int64)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        rows[here] = Order(num_rows, seed=seed, epoch=int(epoch)).rows(positions[here])
    return rows


def _mix(value: int) -> int:
    value ^= value >> 30
    value = value * _MULTIPLIERS[0] & _MASK
    value ^= value >> 27
    value = value * _MULTIPLIERS[1] & _MASK
    return value ^ (value >> 31)


def _mix_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(_MULTIPLIERS[0])
    values ^= values >> np.uint64(27)
    values *= np.uint64(_MULTIPLIERS[1])
    return values ^ (values >> np.uint64(31))
