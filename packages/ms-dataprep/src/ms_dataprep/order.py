"""The order of training rows: a keyed permutation of any position, in constant memory (contract `batch`)."""

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_NUM_ROUNDS = 8


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


def rows_at(samples: NDArray[np.int64], num_rows: int, *, seed: int, shuffle: bool = True) -> NDArray[np.int64]:
    """Row numbers (int64) of global sample numbers, which run on through the epochs.

    Args:
        samples: int64, each 0 or more.
        num_rows: rows of the dataset.
        seed: with the epoch, the whole of the randomness.
        shuffle: False gives file order in every epoch.
    """
    epochs, positions = np.divmod(samples, num_rows)
    if not shuffle:
        return positions
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
