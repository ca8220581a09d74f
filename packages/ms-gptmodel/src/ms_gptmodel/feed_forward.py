# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The feed-forward layer of a block, gated or not."""

from mindspore import Tensor, nn

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.kernels import select
from ms_gptmodel.projection import Projection


class FeedForward(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, hidden] -> down(act(up)), or down(act(gate) * up) when gated.

    Args:
        config: the model's.
        inner: width inside; None: intermediate_size.
        has_bias: whether the projections have one; None: as the config's mlp_bias says.
    """

    def __init__(self, config: ModelConfig, inner: int | None = None, *, has_bias: bool | None = None) -> None:
        super().__init__()
        kernels = select()
        hidden, inner = config.hidden_size, config.intermediate_size if inner is None else inner
        has_bias = config.mlp_bias if has_bias is None else has_bias
        self.gate = Projection(hidden, inner, has_bias) if config.gated_mlp else None
        self.up = Projection(hidden, inner, has_bias)
        self.down = Projection(inner, hidden, has_bias)
        kind = config.hidden_act
        self.activate = kernels.GatedActivation(kind) if config.gated_mlp else kernels.Activation(kind)

    def construct(self, rows: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activate(self.up(rows)))
        return self.down(self.activate(self.gate(rows), self.up(rows)))
