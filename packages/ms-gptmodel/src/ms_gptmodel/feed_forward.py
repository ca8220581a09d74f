# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The feed-forward layer of a block, gated or not."""

from mindspore import Tensor, nn

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.kernels import select
from ms_gptmodel.projection import Projection


class FeedForward(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, hidden] -> down(act(up)), or down(act(gate) * up) when gated."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kernels = select()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate = Projection(hidden, inner, config.mlp_bias) if config.gated_mlp else None
        self.up = Projection(hidden, inner, config.mlp_bias)
        self.down = Projection(inner, hidden, config.mlp_bias)
        kind = config.hidden_act
        self.activate = kernels.GatedActivation(kind) if config.gated_mlp else kernels.Activation(kind)

    def construct(self, rows: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activate(self.up(rows)))
        return self.down(self.activate(self.gate(rows), self.up(rows)))
