"""Figures about one tensor: range, mean, spread, and how many elements are not finite."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ms_ckpt.tensor import RawTensor, Tensor

_STRIP = 1 << 20  # elements at a time: a tensor of any size costs a few strips of float64 and no more


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Over the finite elements, in float64; nan where there are none."""

    minimum: float
    maximum: float
    mean: float
    std: float
    num_non_finite: int


def describe(tensor: Tensor) -> Statistics:
    """The statistics of a tensor, in two passes (mean first, so that the spread is exact)."""
    count, total, minimum, maximum = 0, 0.0, np.inf, -np.inf
    size = 0
    for values in _strips(tensor):
        size += values.size
        finite = values[np.isfinite(values)]
        if finite.size:
            count += finite.size
            total += float(finite.sum())
            minimum, maximum = min(minimum, float(finite.min())), max(maximum, float(finite.max()))
    if count == 0:
        nan = float("nan")
        return Statistics(minimum=nan, maximum=nan, mean=nan, std=nan, num_non_finite=size)
    mean = total / count
    squares = sum(float(np.square(values[np.isfinite(values)] - mean).sum()) for values in _strips(tensor))
    return Statistics(
        minimum=float(minimum),
        maximum=float(maximum),
        mean=mean,
        std=float(np.sqrt(squares / count)),
        num_non_finite=size - count,
    )


def _strips(tensor: Tensor) -> Iterator[NDArray[np.float64]]:
    flat = (tensor.words if isinstance(tensor, RawTensor) else tensor).reshape(-1)
    for start in range(0, flat.size, _STRIP):
        part = flat[start : start + _STRIP]
        values = RawTensor(tensor.dtype, part).to_float32() if isinstance(tensor, RawTensor) else part
        with np.errstate(invalid="ignore"):  # a signalling NaN is counted, not complained about
            wide = values.astype(np.float64)
        yield wide
