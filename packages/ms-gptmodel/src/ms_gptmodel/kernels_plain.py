# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The arithmetic of the model in MindSpore's ordinary operators: works anywhere, and says what the others must equal.

Shapes: R rows (batch times length), I and O widths of a projection, B batch, N query heads, K key/value heads,
T query positions, S key positions, D head_dim. Whatever the weights' type, norms, softmax, rotation and loss are
computed in fp32.
"""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_gptmodel.dropout import Dropout

# Far below any score and far above -inf, so that a row in which nothing is allowed stays finite.
MASKED = -1e30


class Linear(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_RI, weight_OI -> x weight^T, [R, O]."""

    def __init__(self) -> None:
        super().__init__()
        self.multiply = ops.MatMul(transpose_b=True)

    def construct(self, x_RI: Tensor, weight_OI: Tensor) -> Tensor:
        return self.multiply(x_RI, weight_OI)


class BiasedLinear(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_RI, weight_OI, bias_O -> x weight^T + bias, [R, O]."""

    def __init__(self) -> None:
        super().__init__()
        self.multiply = ops.MatMul(transpose_b=True)

    def construct(self, x_RI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
        return self.multiply(x_RI, weight_OI) + bias_O


class RMSNorm(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_RI, weight_I -> x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, equation 4)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, x_RI: Tensor, weight_I: Tensor) -> Tensor:
        x = ops.cast(x_RI, ms.float32)
        scale = 1.0 / ops.sqrt(ops.mean(x * x, -1, True) + self.eps)  # no rsqrt: ONNX export refuses it
        return ops.cast(x * scale * ops.cast(weight_I, ms.float32), x_RI.dtype)


class LayerNorm(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_RI, weight_I, bias_I -> (x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016, equation 4)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def construct(self, x_RI: Tensor, weight_I: Tensor, bias_I: Tensor) -> Tensor:
        x = ops.cast(x_RI, ms.float32)
        x = x - ops.mean(x, -1, True)
        scale = 1.0 / ops.sqrt(ops.mean(x * x, -1, True) + self.eps)
        y = x * scale * ops.cast(weight_I, ms.float32) + ops.cast(bias_I, ms.float32)
        return ops.cast(y, x_RI.dtype)


class Activation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x -> act(x) for silu, gelu (erf form), gelu_new (tanh form), relu."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def construct(self, x_RI: Tensor) -> Tensor:
        x = ops.cast(x_RI, ms.float32)
        if self.kind == "silu":
            y = x * ops.sigmoid(x)
        elif self.kind == "gelu":
            y = 0.5 * x * (1.0 + ops.erf(x * 0.7071067811865476))
        elif self.kind == "gelu_new":
            # (1 + tanh(u)) / 2 = sigmoid(2 u); MindSpore's tanh on CPU errs by 1e-4.
            y = x * ops.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
        else:
            y = ops.relu(x)
        return ops.cast(y, x_RI.dtype)


class GatedActivation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """gate, up -> act(gate) * up (Shazeer 2020)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.activation = Activation(kind)

    def construct(self, gate_RI: Tensor, up_RI: Tensor) -> Tensor:
        return self.activation(gate_RI) * up_RI


class SoftCap(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x -> cap tanh(x / cap) in fp32, of x's type (Gemma 2; Bello et al. 2016, section 5.1)."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap, self.inverse = cap, 1.0 / cap
        self.tanh = _Tanh()

    def construct(self, x: Tensor) -> Tensor:
        return ops.cast(self.tanh(ops.cast(x, ms.float32) * self.inverse) * self.cap, x.dtype)


class _Tanh(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """tanh within 3e-7: MindSpore's own on CPU errs by 1e-4, and 2 sigmoid(2 x) - 1 by 1.6e-6.

    Lambert's continued fraction, cut after seven steps, at x / 4, then twice tanh(2 u) = 2 t / (1 + t^2).
    """

    def construct(self, x: Tensor) -> Tensor:
        u = ops.clamp(x, -10.0, 10.0) * 0.25
        s = u * u
        t = u * (135135.0 + s * (17325.0 + s * (378.0 + s))) / (135135.0 + s * (62370.0 + s * (3150.0 + 28.0 * s)))
        t = 2.0 * t / (1.0 + t * t)
        return 2.0 * t / (1.0 + t * t)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (dout * (1.0 - out * out),)


class RotationRows(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """Tables [P, D], position_ids [B, T] -> their rows in the form that `Rotation` takes for so many heads."""

    def construct(
        self, cosines_PD: Tensor, sines_PD: Tensor, position_ids: Tensor, num_heads: int
    ) -> tuple[Tensor, Tensor]:
        batch, length = position_ids.shape
        ids = position_ids.reshape(-1)
        cosines = ops.gather(cosines_PD, ids, 0).reshape(batch, 1, length, -1)
        return cosines, ops.gather(sines_PD, ids, 0).reshape(batch, 1, length, -1)


class Rotation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_BNTD, rows of tables -> x cos + turn(x) sin (Su et al. 2021), in the first `rotary_dim` numbers of a head.

    turn([a, b]) = [-b, a], where a and b are the two halves of what is rotated, or neighbours when interleaved.
    """

    def __init__(self, head_dim: int, rotary_dim: int, is_interleaved: bool) -> None:
        super().__init__()
        sources, signs = turn_of(head_dim, rotary_dim, is_interleaved)
        self.sources, self.signs = Tensor(sources), Tensor(signs)

    def construct(self, x_BNTD: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = ops.cast(x_BNTD, ms.float32)
        turned = ops.gather(x, self.sources, 3) * self.signs
        return ops.cast(x * cosines + turned * sines, x_BNTD.dtype)


def turn_of(head_dim: int, rotary_dim: int, is_interleaved: bool) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """For each number of a head, which one `turn` puts there (int32) and with which sign (float32, 0: none)."""
    sources, signs = np.arange(head_dim, dtype=np.int32), np.zeros(head_dim, np.float32)
    pairs = np.arange(rotary_dim // 2)
    first, second = (2 * pairs, 2 * pairs + 1) if is_interleaved else (pairs, pairs + rotary_dim // 2)
    sources[first], sources[second] = second, first
    signs[first], signs[second] = -1.0, 1.0
    return sources, signs


class AttentionMask(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """allowed_BTS (bool; B may be 1), bias [B, N, T, S] or None -> the mask in the form that `Attention` takes."""

    def construct(self, allowed_BTS: Tensor, batch: int, num_heads: int, bias_BNTS: Tensor | None = None) -> Tensor:
        mask = ((1.0 - ops.cast(allowed_BTS, ms.float32)) * MASKED).expand_dims(1)
        return mask if bias_BNTS is None else mask + bias_BNTS


class Attention(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """q_BNTD, k_BKSD, v_BKSD, mask -> softmax(cap(scale q k^T) + mask) v, [B, N, T, D]; N/K queries share a key.

    A query that may see nothing gets the mean of all values: finite, and nobody looks at it. With `keys`, a pair of
    numbers for `Dropout`, probabilities are dropped.
    """

    def __init__(self, scale: float, soft_cap: float | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = Dropout(dropout) if dropout > 0 else None
        self.cap = None if soft_cap is None else SoftCap(soft_cap)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.values = ops.BatchMatMul()

    def construct(
        self, q_BNTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor, keys: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        group = q_BNTD.shape[1] // k_BKSD.shape[1]
        k, v = k_BKSD, v_BKSD
        if group > 1:
            k, v = ops.repeat_interleave(k, group, 1), ops.repeat_interleave(v, group, 1)
        scores_BNTS = ops.cast(self.scores(q_BNTD * self.scale, k), ms.float32)
        if self.cap is not None:
            scores_BNTS = self.cap(scores_BNTS)
        shares_BNTS = ops.softmax(scores_BNTS + mask, -1)
        if self.dropout is not None and keys is not None:
            dropped = self.dropout(shares_BNTS.reshape(-1, shares_BNTS.shape[3]), keys[0], keys[1])
            shares_BNTS = dropped.reshape(shares_BNTS.shape)
        return self.values(ops.cast(shares_BNTS, v.dtype), v)


class TokenLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """logits [R, V], labels int32 [R] -> -log softmax(logits)[label] in fp32, [R]; 0 where the label is -100."""

    def construct(self, logits_RV: Tensor, labels_R: Tensor) -> Tensor:
        counts = labels_R != -100
        labels = ops.where(counts, labels_R, ops.zeros_like(labels_R))
        log_probabilities = ops.log_softmax(ops.cast(logits_RV, ms.float32), -1)
        picked = ops.gather_elements(log_probabilities, 1, labels.reshape(-1, 1)).reshape(-1)
        return -picked * ops.cast(counts, ms.float32)


class RegularizedTokenLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As TokenLoss, with label smoothing e and z-loss coefficient z, [R]; 0 where the label is -100.

    (1 - e) times the cross entropy of the label, e times its mean over all ids (Szegedy et al. 2015, section 7), and
    z (log sum exp)^2 (Chowdhery et al. 2022, section 5).
    """

    def __init__(self, label_smoothing: float, z_loss: float) -> None:
        super().__init__()
        self.smoothing, self.z = label_smoothing, z_loss

    def construct(self, logits_RV: Tensor, labels_R: Tensor) -> Tensor:
        counts = labels_R != -100
        labels = ops.where(counts, labels_R, ops.zeros_like(labels_R))
        x = ops.cast(logits_RV, ms.float32)
        log_probabilities = ops.log_softmax(x, -1)
        picked = ops.gather_elements(log_probabilities, 1, labels.reshape(-1, 1)).reshape(-1)
        lse = ops.gather_elements(x, 1, labels.reshape(-1, 1)).reshape(-1) - picked
        losses = -(1.0 - self.smoothing) * picked - self.smoothing * (x.mean(-1) - lse) + self.z * lse * lse
        return losses * ops.cast(counts, ms.float32)
