# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""A linear layer on rows, and a table of rows by id: the two cells that hold matrices."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_gptmodel.kernels import select


class Projection(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, in] -> rows weight^T + bias, [R, out]; `weight` is [out, in]."""

    def __init__(self, in_width: int, out_width: int, has_bias: bool) -> None:
        super().__init__()
        kernels = select()
        self.weight = Parameter(Tensor(np.zeros((out_width, in_width), np.float32)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(out_width, np.float32)), name="bias") if has_bias else None
        self.linear = kernels.BiasedLinear() if has_bias else kernels.Linear()

    def construct(self, rows: Tensor) -> Tensor:
        if self.bias is None:
            return self.linear(rows, self.weight)
        return self.linear(rows, self.weight, self.bias)


class Embedding(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """ids of any shape -> rows [number of ids, width] of `weight` [count, width]."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((count, width), np.float32)), name="weight")

    def construct(self, ids: Tensor) -> Tensor:
        return ops.gather(self.weight, ops.cast(ids, ms.int32).reshape(-1), 0)
