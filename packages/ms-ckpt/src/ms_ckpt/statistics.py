"""Figures about one tensor: range, mean, spread, and how many elements are not finite."""

from dataclasses import dataclass

import numpy as np

from ms_ckpt.tensor import RawTensor, Tensor


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Over the finite elements, in float64; nan where there are none (or the type has no arithmetic here: FP8)."""

    minimum: float
    maximum: float
    mean: float
    std: float
    num_non_finite: int


def describe(tensor: Tensor) -> Statistics:
    """The statistics of a tensor."""
    if isinstance(tensor, RawTensor):
        values = tensor.to_float32() if tensor.dtype == "BF16" else np.empty(0)
    else:
        values = tensor
    is_finite = np.isfinite(values)
    finite = values[is_finite].astype(np.float64)
    num_non_finite = int(values.size - finite.size)
    if finite.size == 0:
        nan = float("nan")
        return Statistics(minimum=nan, maximum=nan, mean=nan, std=nan, num_non_finite=num_non_finite)
    return Statistics(
        minimum=float(finite.min()),
        maximum=float(finite.max()),
        mean=float(finite.mean()),
        std=float(finite.std()),
        num_non_finite=num_non_finite,
    )
