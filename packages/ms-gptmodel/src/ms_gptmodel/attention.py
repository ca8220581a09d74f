# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""Self-attention with grouped queries, inside segments, causal or not, over all positions or a window.

Shapes: R rows (B times T), B batch, T positions, N query heads, K key/value heads, D head_dim.
"""

import math

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.kernels import select
from ms_gptmodel.norms import head_norm
from ms_gptmodel.positions import Rotation
from ms_gptmodel.projection import Projection


class Attention(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, hidden] -> rows [R, hidden]. The number of heads follows from the width of the projections."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kernels = select()
        hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.query = Projection(hidden, queries, config.attention_bias)
        self.key = Projection(hidden, keys, config.attention_bias)
        self.value = Projection(hidden, keys, config.attention_bias)
        self.output = Projection(queries, hidden, config.attention_output_bias)
        self.query_norm = head_norm(config) if config.qk_norm else None
        self.key_norm = head_norm(config) if config.qk_norm else None
        if config.position_kind == "rotary":
            self.rotate = kernels.Rotation(config.head_dim, config.rotary_dim, config.rope_interleaved)
        scale = 1.0 / math.sqrt(config.query_pre_attn_scalar)
        self.attend = kernels.Attention(scale, config.attn_logit_softcapping, config.attention_dropout)

    def num_local_heads(self) -> tuple[int, int]:
        """Query heads and key/value heads of this device's part of the projections."""
        return self.query.weight.shape[0] // self.head_dim, self.key.weight.shape[0] // self.head_dim

    def heads(self, rows: Tensor, batch: int, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, N, T, D], keys and values [B, K, T, D], normed and rotated as the config has it."""
        length = rows.shape[0] // batch
        query, key = self.query(rows), self.key(rows)
        if self.query_norm is not None and self.key_norm is not None:
            query = self.query_norm(query.reshape(-1, self.head_dim))
            key = self.key_norm(key.reshape(-1, self.head_dim))
        query, key = self._split(query, batch, length), self._split(key, batch, length)
        if rotation is not None:
            query = self.rotate(query, rotation[0], rotation[1])
            key = self.rotate(key, rotation[2], rotation[3])
        return query, key, self._split(self.value(rows), batch, length)

    def merge(self, context_BNTD: Tensor) -> Tensor:
        """All heads' contexts side by side through the output projection, [R, hidden]."""
        num_heads = context_BNTD.shape[1]
        return self.output(ops.transpose(context_BNTD, (0, 2, 1, 3)).reshape(-1, num_heads * self.head_dim))

    def construct(self, rows: Tensor, batch: int, rotation: Rotation | None, mask: Tensor) -> Tensor:
        query, key, value = self.heads(rows, batch, rotation)
        return self.merge(self.attend(query, key, value, mask))

    def _split(self, rows: Tensor, batch: int, length: int) -> Tensor:
        return ops.transpose(rows.reshape(batch, length, -1, self.head_dim), (0, 2, 1, 3))


def allowed_pairs(
    length: int, segment_ids: Tensor | None, *, is_causal: bool = True, window: int | None = None
) -> Tensor:
    """True where a query (axis 1) may see a key (axis 2), bool [1 or B, length, length].

    Causal: a key that is not later, and with a window, one of the last `window`. Always: of the same segment.
    """
    index = ops.cast(ops.arange(length), mstype.int32)
    distance = index.reshape(length, 1) - index.reshape(1, length)
    allowed = distance >= 0 if is_causal else distance == distance
    if window is not None:
        allowed = ops.logical_and(allowed, distance < window)
    allowed = allowed.expand_dims(0)
    if segment_ids is None:
        return allowed
    return ops.logical_and(allowed, segment_ids.expand_dims(2) == segment_ids.expand_dims(1))
