# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The two norms of transformers, over the last axis and in fp32."""

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.kernels import select


class RMSNorm(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, width] -> rows of mean square 1, times `weight`, or 1 + `weight` when it adds one."""

    def __init__(self, width: int, eps: float, adds_one: bool = False) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")
        self.adds_one = adds_one
        self.normalize = select().RMSNorm(eps)

    def construct(self, rows: Tensor) -> Tensor:
        return self.normalize(rows, self.weight + 1.0 if self.adds_one else self.weight)


class LayerNorm(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, width] -> rows of mean 0 and variance 1, times `weight`, plus `bias` if there is one."""

    def __init__(self, width: int, eps: float, has_bias: bool) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(width, np.float32)), name="weight")
        self.bias = Parameter(Tensor(np.zeros(width, np.float32)), name="bias") if has_bias else None
        self.normalize = select().LayerNorm(eps)

    def construct(self, rows: Tensor) -> Tensor:
        bias = ops.zeros_like(self.weight) if self.bias is None else self.bias
        return self.normalize(rows, self.weight, bias)


def block_norm(config: ModelConfig) -> nn.Cell:
    """A fresh norm of the residual stream, as the config has it."""
    if config.norm_kind == "rms_norm":
        return RMSNorm(config.hidden_size, config.rms_norm_eps, config.rms_norm_adds_one)
    return LayerNorm(config.hidden_size, config.layer_norm_eps, config.norm_bias)


def head_norm(config: ModelConfig) -> RMSNorm:
    """A fresh norm of the queries or keys of one head."""
    return RMSNorm(config.head_dim, config.rms_norm_eps, config.rms_norm_adds_one)
