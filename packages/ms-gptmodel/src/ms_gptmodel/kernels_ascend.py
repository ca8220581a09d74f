# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The same cells as kernels_plain with the fused operators of Ascend, called as MindSpore 2.10 documents them.

No test executes them: there is no Ascend in our tests. They check the operators' signatures and the shape rules below.
What a fused operator does not take (types, shapes) goes through the plain formulation. Shapes as in kernels_plain.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_gptmodel import kernels_plain
from ms_gptmodel.kernels_plain import (
    MASKED,
    Activation,
    BiasedLinear,
    LayerNorm,
    Linear,
    RegularizedTokenLoss,
    RotationRows,
    SoftCap,
    TokenLoss,
)

__all__ = [
    "Activation",
    "Attention",
    "AttentionMask",
    "BiasedLinear",
    "DocumentEnds",
    "GatedActivation",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "RegularizedTokenLoss",
    "Rotation",
    "RotationRows",
    "SoftCap",
    "TokenLoss",
    "fits_flash_attention",
    "fits_fused_rotation",
]


def fits_flash_attention(dtype: object, num_heads: int, head_dim: int) -> bool:
    """Whether `ops.flash_attention_score` takes queries of this type and shape."""
    return dtype in (ms.float16, ms.bfloat16) and num_heads <= 256 and head_dim % 16 == 0 and head_dim <= 512


def fits_fused_rotation(batch: int, num_heads: int, length: int, rotary_dim: int, is_interleaved: bool) -> bool:
    """Whether `ops.rotary_position_embedding` takes [batch, num_heads, length, rotary_dim], with tables a row.

    Interleaved, it wants one table for all rows.
    """
    is_small = batch < 1000 and num_heads < 1000 and rotary_dim < 896 and batch * num_heads <= 8 * length
    return is_small and rotary_dim % 2 == 0 and (batch == 1 or not is_interleaved)


class RMSNorm(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain, by `ops.rms_norm`, which wants one type for both inputs and sums in fp32."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, x_RI: Tensor, weight_I: Tensor) -> Tensor:
        return ops.rms_norm(x_RI, ops.cast(weight_I, x_RI.dtype), self.eps)[0]


class GatedActivation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain; silu by `ops.swiglu`, which wants gate and up side by side."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.plain = kernels_plain.GatedActivation(kind)

    def construct(self, gate_RI: Tensor, up_RI: Tensor) -> Tensor:
        if self.kind != "silu":
            return self.plain(gate_RI, up_RI)
        return ops.swiglu(ops.concat((gate_RI, up_RI), -1), -1)


class Rotation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain, by `ops.rotary_position_embedding` in fp32, on the part of a head that is rotated."""

    def __init__(self, head_dim: int, rotary_dim: int, is_interleaved: bool) -> None:
        super().__init__()
        self.rotary_dim, self.mode = rotary_dim, int(is_interleaved)
        self.plain = kernels_plain.Rotation(head_dim, rotary_dim, is_interleaved)

    def construct(self, x_BNTD: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, num_heads, length, head_dim = x_BNTD.shape
        if not fits_fused_rotation(batch, num_heads, length, self.rotary_dim, self.mode == 1):
            return self.plain(x_BNTD, cosines, sines)
        x = ops.cast(x_BNTD, ms.float32)
        if self.rotary_dim == head_dim:
            return ops.cast(ops.rotary_position_embedding(x, cosines, sines, self.mode), x_BNTD.dtype)
        part, end = x[..., : self.rotary_dim], self.rotary_dim
        part = ops.rotary_position_embedding(part, cosines[..., :end], sines[..., :end], self.mode)
        return ops.cast(ops.concat((part, x[..., end:]), -1), x_BNTD.dtype)


class AttentionMask(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain: True where a key is hidden, bool [B, 1, T, S]; with a bias, in the plain form."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = kernels_plain.AttentionMask()

    def construct(self, allowed_BTS: Tensor, batch: int, num_heads: int, bias_BNTS: Tensor | None = None) -> Tensor:
        if bias_BNTS is not None:
            return self.plain(allowed_BTS, batch, num_heads, bias_BNTS)
        hidden = ops.logical_not(allowed_BTS).expand_dims(1)
        return ops.broadcast_to(hidden, (batch, 1, hidden.shape[2], hidden.shape[3]))


class DocumentEnds(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """position_ids, segment_ids [B, T] or None -> where documents end when rows stand after one another, int64 to B T.

    What `ops.flash_attention_score` calls actual_seq_qlen and actual_seq_kvlen. Padding at a row's end is a document of
    its own. Their number is known at run time only, so the result's shape is dynamic; the operator takes up to 1024.
    Without segments every row is one document.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    def fits(self, dtype: object, num_heads: int) -> bool:
        """Whether attention takes these ends, for queries of this type and number of heads."""
        return fits_flash_attention(dtype, num_heads, self.head_dim)

    def construct(self, position_ids: Tensor, segment_ids: Tensor | None) -> Tensor:
        batch, length = position_ids.shape
        if segment_ids is None:
            return (ops.cast(ops.arange(batch), ms.int64) + 1) * length
        changes = segment_ids[:, 1:] != segment_ids[:, :-1]
        is_last = ops.concat((changes, ops.ones((batch, 1), ms.bool_)), 1)
        return ops.nonzero(is_last.reshape(-1)).reshape(-1) + 1


class Attention(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain, by `ops.flash_attention_score`, which knows grouped queries but no soft cap.

    With the ends of documents in place of a mask, it goes through the documents one by one, causally, and no array of
    [T, T] is made. Dropout and biases (ALiBi) take the plain way too: the operator draws masks of its own, and the
    order in which it scales and adds differs between versions.
    """

    def __init__(self, scale: float, soft_cap: float | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale, self.is_capped, self.drops = scale, soft_cap is not None, dropout > 0
        self.plain = kernels_plain.Attention(scale, soft_cap, dropout)
        self.later = Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))  # the form that sparse_mode 3 wants

    def construct(
        self, q_BNTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor, keys: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        batch, num_heads, length, head_dim = q_BNTD.shape
        if mask.dtype == ms.int64:
            context = ops.flash_attention_score(
                _rows(q_BNTD), _rows(k_BKSD), _rows(v_BKSD), num_heads, attn_mask=self.later, actual_seq_qlen=mask,
                actual_seq_kvlen=mask, scalar_value=self.scale, next_tokens=0, input_layout="TND", sparse_mode=3,
            )  # fmt: skip
            return ops.transpose(context.reshape(batch, length, num_heads, head_dim), (0, 2, 1, 3))
        if mask.dtype != ms.bool_:
            return self.plain(q_BNTD, k_BKSD, v_BKSD, mask, keys)
        is_plain = self.is_capped or (self.drops and keys is not None)
        if is_plain or not fits_flash_attention(q_BNTD.dtype, num_heads, head_dim):
            return self.plain(q_BNTD, k_BKSD, v_BKSD, ops.cast(mask, ms.float32) * MASKED, keys)
        return ops.flash_attention_score(
            q_BNTD, k_BKSD, v_BKSD, num_heads, attn_mask=mask, scalar_value=self.scale, input_layout="BNSD"
        )


def _rows(x_BNTD: Tensor) -> Tensor:
    """[B T, N, D]: the layout TND."""
    return ops.transpose(x_BNTD, (0, 2, 1, 3)).reshape(-1, x_BNTD.shape[1], x_BNTD.shape[3])
