# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The same cells as kernels_plain, in the form that MindSpore's CPU operators run fastest.

What is slow there: broadcasting a column over a matrix, a reduction in a backward pass, and the many small operators
that automatic differentiation makes of one formula. So sums over rows or columns and outer products are MatMuls with
a vector, and formulas bring their own backward pass. Shapes as in kernels_plain.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_gptmodel import kernels_plain
from ms_gptmodel.dropout import Dropout
from ms_gptmodel.kernels_cpu_loss import RegularizedTokenLoss, TokenLoss
from ms_gptmodel.kernels_plain import MASKED, Linear, SoftCap, turn_of

__all__ = [
    "Activation",
    "Attention",
    "AttentionMask",
    "BiasedLinear",
    "GatedActivation",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "RegularizedTokenLoss",
    "Rotation",
    "RotationRows",
    "SoftCap",
    "TokenLoss",
]

_multiply = ops.MatMul()
_multiply_t = ops.MatMul(transpose_b=True)
_t_multiply = ops.MatMul(transpose_a=True)
_mean = ops.ReduceMean(keep_dims=True)
_bias_add = ops.BiasAdd()


class BiasedLinear(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain; the bias's gradient is a MatMul with ones."""

    def construct(self, x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
        return _bias_add(_multiply_t(x_RI, weight_OI), bias_O)

    def bprop(
        self, x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        ones = ops.ones((1, dout.shape[0]), dout.dtype)
        return _multiply(dout, weight_OI), _t_multiply(dout, x_RI), _multiply(ones, dout).reshape(-1)


class RMSNorm(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, x_RI: Tensor, weight_I: Tensor) -> Tensor:
        x, weight_1I = ops.cast(x_RI, ms.float32), ops.cast(weight_I, ms.float32).reshape(1, -1)
        return ops.cast(x * _multiply(self._scales(x), weight_1I), x_RI.dtype)

    def bprop(self, x_RI: Tensor, weight_I: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        x, dy, width = ops.cast(x_RI, ms.float32), ops.cast(dout, ms.float32), x_RI.shape[1]
        weight_1I = ops.cast(weight_I, ms.float32).reshape(1, -1)
        scale_R1 = self._scales(x)
        products = x * dy
        pull_R1 = _multiply_t(products, weight_1I) * scale_R1 * scale_R1 * scale_R1 * (1.0 / width)
        dx = dy * _multiply(scale_R1, weight_1I) - x * _multiply(pull_R1, ops.ones((1, width), ms.float32))
        dweight = _t_multiply(products, scale_R1).reshape(-1)
        return ops.cast(dx, x_RI.dtype), ops.cast(dweight, weight_I.dtype)

    def _scales(self, x: Tensor) -> Tensor:
        return 1.0 / ops.sqrt(_mean(x * x, -1) + self.eps)


class LayerNorm(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, x_RI: Tensor, weight_I: Tensor, bias_I: Tensor) -> Tensor:
        x, weight_1I = self._centred(x_RI), ops.cast(weight_I, ms.float32).reshape(1, -1)
        y = _bias_add(x * _multiply(self._scales(x), weight_1I), ops.cast(bias_I, ms.float32))
        return ops.cast(y, x_RI.dtype)

    def bprop(
        self, x_RI: Tensor, weight_I: Tensor, bias_I: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, dy, width = self._centred(x_RI), ops.cast(dout, ms.float32), x_RI.shape[1]
        weight_1I, ones_1I = ops.cast(weight_I, ms.float32).reshape(1, -1), ops.ones((1, width), ms.float32)
        scale_R1 = self._scales(x)
        products = x * dy
        pull_R1 = _multiply_t(products, weight_1I) * scale_R1 * scale_R1 * scale_R1 * (1.0 / width)
        mean_R1 = _multiply_t(dy, weight_1I) * scale_R1 * (1.0 / width)
        dx = dy * _multiply(scale_R1, weight_1I) - x * _multiply(pull_R1, ones_1I) - _multiply(mean_R1, ones_1I)
        dweight = _t_multiply(products, scale_R1).reshape(-1)
        dbias = _multiply(ops.ones((1, dy.shape[0]), ms.float32), dy).reshape(-1)
        return ops.cast(dx, x_RI.dtype), ops.cast(dweight, weight_I.dtype), ops.cast(dbias, bias_I.dtype)

    def _centred(self, x_RI: Tensor) -> Tensor:
        x = ops.cast(x_RI, ms.float32)
        return x - _multiply(_mean(x, -1), ops.ones((1, x.shape[1]), ms.float32))

    def _scales(self, x: Tensor) -> Tensor:
        return 1.0 / ops.sqrt(_mean(x * x, -1) + self.eps)


class Activation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain; the tanh form with its own backward pass."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.activation = _TanhGelu() if kind == "gelu_new" else kernels_plain.Activation(kind)

    def construct(self, x_RI: Tensor) -> Tensor:
        if self.kind == "gelu_new":
            return ops.cast(self.activation(ops.cast(x_RI, ms.float32))[0], x_RI.dtype)
        return self.activation(x_RI)


class _TanhGelu(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x -> (x sigmoid(2 u), sigmoid(2 u)); the second is for the backward pass."""

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        s = ops.sigmoid(x * (1.5957691216057308 + 0.07135481282744603 * (x * x)))
        return x * s, s

    def bprop(self, x: Tensor, out: tuple[Tensor, Tensor], dout: tuple[Tensor, Tensor]) -> tuple[Tensor]:
        y, s = out
        return (dout[0] * (s + (y - y * s) * (1.5957691216057308 + 0.2140644384823381 * (x * x))),)


class GatedActivation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain; silu with its own backward pass."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.activation = _GatedSilu() if kind == "silu" else Activation(kind)

    def construct(self, gate_RI: Tensor, up_RI: Tensor) -> Tensor:
        if self.kind == "silu":
            gate, up = ops.cast(gate_RI, ms.float32), ops.cast(up_RI, ms.float32)
            return ops.cast(self.activation(gate, up)[0], gate_RI.dtype)
        return self.activation(gate_RI) * up_RI


class _GatedSilu(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """gate, up -> (silu(gate) up, sigmoid(gate)); the second is for the backward pass."""

    def construct(self, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        s = ops.sigmoid(gate)
        return gate * s * up, s

    def bprop(
        self, gate: Tensor, up: Tensor, out: tuple[Tensor, Tensor], dout: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        y, s = out
        ds = dout[0] * s
        return ds * (up + (gate * up - y)), ds * gate


class RotationRows(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain, a row for each head's row, [B N T, D], so that nothing broadcasts."""

    def construct(
        self, cosines_PD: Tensor, sines_PD: Tensor, position_ids: Tensor, num_heads: int
    ) -> tuple[Tensor, Tensor]:
        batch, length = position_ids.shape
        ids = ops.broadcast_to(position_ids.expand_dims(1), (batch, num_heads, length)).reshape(-1)
        return ops.gather(cosines_PD, ids, 0), ops.gather(sines_PD, ids, 0)


class Rotation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain; turning is a MatMul with a fixed matrix."""

    def __init__(self, head_dim: int, rotary_dim: int, is_interleaved: bool) -> None:
        super().__init__()
        sources, signs = turn_of(head_dim, rotary_dim, is_interleaved)
        turn = np.zeros((head_dim, head_dim), np.float32)
        turn[sources, np.arange(head_dim)] = signs
        self.turn = Tensor(turn)

    def construct(self, x_BNTD: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = ops.cast(x_BNTD, ms.float32).reshape(-1, x_BNTD.shape[3])
        return ops.cast(x * cosines + _multiply(x, self.turn) * sines, x_BNTD.dtype).reshape(x_BNTD.shape)

    def bprop(
        self, x_BNTD: Tensor, cosines: Tensor, sines: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        dy = ops.cast(dout, ms.float32).reshape(-1, x_BNTD.shape[3])
        dx = dy * cosines + _multiply_t(dy * sines, self.turn)
        return ops.cast(dx, x_BNTD.dtype).reshape(x_BNTD.shape), ops.zeros_like(cosines), ops.zeros_like(sines)


class AttentionMask(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain, one mask a head, [B N T, S]: copied once, then nothing broadcasts."""

    def construct(self, allowed_BTS: Tensor, batch: int, num_heads: int, bias_BNTS: Tensor | None = None) -> Tensor:
        mask = (1.0 - ops.cast(allowed_BTS, ms.float32)) * MASKED
        if bias_BNTS is not None:
            return (mask.expand_dims(1) + bias_BNTS).reshape(-1, mask.shape[2])
        copies = batch * num_heads // mask.shape[0]
        mask = ops.tile(mask.expand_dims(1), (1, copies, 1, 1))
        return mask.reshape(-1, mask.shape[3])


class Attention(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain; the query heads of one key head are folded into its rows instead of copying keys."""

    def __init__(self, scale: float, soft_cap: float | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = Dropout(dropout) if dropout > 0 else None
        self.cap = None if soft_cap is None else SoftCap(soft_cap)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.values = ops.BatchMatMul()
        self.softmax = _Softmax()

    def construct(
        self, q_BNTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor, keys: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        batch, _, length, width = k_BKSD.shape
        k, v = k_BKSD.reshape(-1, length, width), v_BKSD.reshape(-1, length, width)
        rows = q_BNTD.shape[1] * q_BNTD.shape[2] * batch // k.shape[0]
        q = q_BNTD.reshape(-1, rows, width) * self.scale
        scores = ops.cast(self.scores(q, k), ms.float32).reshape(-1, length)
        if self.cap is not None:
            scores = self.cap(scores)
        shares = self.softmax(scores + mask)
        if self.dropout is not None and keys is not None:
            shares = self.dropout(shares, keys[0], keys[1])
        return self.values(ops.cast(shares, v.dtype).reshape(-1, rows, length), v).reshape(q_BNTD.shape)


class _Softmax(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """scores [rows, S] -> softmax over S."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = ops.Softmax()

    def construct(self, scores: Tensor) -> Tensor:
        return self.softmax(scores)

    def bprop(self, scores: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        ones = ops.ones((1, out.shape[1]), ms.float32)
        products = out * dout
        return (products - out * _multiply(_multiply_t(products, ones), ones),)
