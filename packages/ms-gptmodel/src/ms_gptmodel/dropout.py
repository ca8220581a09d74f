# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""Dropout without hidden state: a mask is a function of (seed, forward call, layer, place, rank) and nothing else.

MindSpore cannot restore the state of its own dropout. Here a number for each element stands in a fixed random table,
shared by all places; a place multiplies it by an odd number and adds another one, both hashed from what the mask
depends on, in int32 arithmetic that wraps around. The element is kept where the result reaches a threshold. So masks
are the same bit for bit in both modes, after a restart, and in a backward pass that computes them again.

Shapes: R rows, I width, P places.
"""

import functools
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import constexpr
from numpy.typing import NDArray

_LARGEST_TABLE = 1 << 22  # numbers; what is larger is cut into blocks of rows with numbers of their own
_STEP = -1640531527  # 2^32 / golden ratio, as int32


class ForwardCounter(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """() -> one pair of numbers a place, int32 [2 P], another set for every call; counts its calls.

    What draws by itself (an adapter) reads `forward` during the call: it is the number of calls begun so far.

    Args:
        num_places: places that draw a mask.
        seed: of all masks.
        rank: of several data-parallel ranks, so that they draw different masks.
    """

    def __init__(self, num_places: int, seed: int, rank: int) -> None:
        super().__init__()
        self.forward = Parameter(Tensor(0, ms.int32), name="forward", requires_grad=False)
        sequence = np.random.Philox(key=[seed, rank]).random_raw(2 * num_places).astype(np.uint64)
        self.first = Tensor((sequence & 0xFFFFFFFF).astype(np.uint32).view(np.int32))
        self.second = Tensor((sequence >> 32).astype(np.uint32).view(np.int32))
        odd = np.zeros(2 * num_places, np.int32)
        odd[::2] = 1
        self.odd = Tensor(odd)

    def construct(self) -> Tensor:
        count = self.forward + 0
        ops.assign(self.forward, count + 1)
        mixed = mix(ops.bitwise_xor(mix(self.first + count * _STEP), self.second))
        return ops.bitwise_or(mixed, self.odd)  # the first of a pair multiplies, the second is added


class CountedPair(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """() -> the two numbers of a place of its own, another pair for every call that `counter` counted.

    Args:
        counter: the model's; it is read, not counted on, so that a block that is computed again draws the same.
        key: two numbers that tell this place from all others.
    """

    def __init__(self, counter: ForwardCounter, key: tuple[int, int]) -> None:
        super().__init__()
        # Past MindSpore's own __setattr__: the Parameter is the counter's and keeps its one name, `counter.forward`.
        object.__setattr__(self, "counted", counter.forward)
        sequence = np.random.Philox(key=list(key)).random_raw(2).astype(np.uint64)
        self.first = Tensor((sequence & 0xFFFFFFFF).astype(np.uint32).view(np.int32))
        self.second = Tensor((sequence >> 32).astype(np.uint32).view(np.int32))

    def construct(self) -> tuple[Tensor, Tensor]:
        mixed = mix(ops.bitwise_xor(mix(self.first + self.counted * _STEP), self.second))
        return ops.bitwise_or(mixed[0], 1), mixed[1]


class Dropout(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_RI, the two numbers of a place -> x / (1 - rate) where the mask keeps it, 0 elsewhere."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        # Kept: a number from the threshold to 2^31 - 1, of 2^32 in all.
        self.threshold = math.floor(rate * 2**32) - 2**31
        self.scale = 1.0 / (1.0 - rate)

    def construct(self, x_RI: Tensor, factor: Tensor, addend: Tensor) -> Tensor:
        return x_RI * self._mask(x_RI, factor, addend)

    def bprop(
        self, x_RI: Tensor, factor: Tensor, addend: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return dout * self._mask(x_RI, factor, addend), ops.zeros_like(factor), ops.zeros_like(addend)

    def _mask(self, x_RI: Tensor, factor: Tensor, addend: Tensor) -> Tensor:
        num_rows, width = x_RI.shape
        per_block = _rows_of_a_block(num_rows, width)
        numbers = _table(per_block, width)
        if per_block < num_rows:
            block = ops.cast(ops.arange(num_rows // per_block), ms.int32).reshape(-1, 1, 1)
            factor = ops.bitwise_or(mix(factor + block * _STEP), 1)
            addend = mix(addend + block * _STEP)
            numbers = numbers.expand_dims(0)
        kept = (numbers * factor + addend) >= self.threshold
        return (ops.cast(kept, x_RI.dtype) * self.scale).reshape(num_rows, width)


def pair_of(keys: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """The two numbers of a place."""
    return keys[2 * place], keys[2 * place + 1]


def mix(x: Tensor) -> Tensor:
    """MurmurHash3's finalizer on int32: every bit of x changes half of the result's (Appleby 2011)."""
    x = ops.bitwise_xor(x, _shifted(x, 16)) * -2048144789
    x = ops.bitwise_xor(x, _shifted(x, 13)) * -1028477387
    return ops.bitwise_xor(x, _shifted(x, 16))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits with zeros coming in; the operator on int32 brings the sign."""
    return ops.bitwise_and(ops.bitwise_right_shift(x, bits), (1 << (32 - bits)) - 1)


@functools.cache
def _numbers(num_rows: int, width: int) -> Tensor:
    generator = np.random.Generator(np.random.Philox(key=20260101))
    numbers: NDArray[np.int32] = generator.integers(-(2**31), 2**31, (num_rows, width), np.int32)
    return Tensor(numbers)


@constexpr  # type: ignore[untyped-decorator]  # once, when a graph is compiled; all places share one Tensor
def _table(num_rows: int, width: int) -> Tensor:
    return _numbers(num_rows, width)


@constexpr  # type: ignore[untyped-decorator]  # once, when a graph is compiled
def _rows_of_a_block(num_rows: int, width: int) -> int:
    """The largest divisor of num_rows whose rows fit the table, 1 at least."""
    most = max(1, _LARGEST_TABLE // width)
    return max(n for n in range(1, min(most, num_rows) + 1) if num_rows % n == 0)
