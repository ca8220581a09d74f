# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The arithmetic of the model in MindSpore's ordinary operators: works anywhere, and says what the others must equal.

Shapes: R rows (batch times length), I and O widths of a projection, B batch, N query heads, K key/value heads,
T query positions, S key positions, D head_dim. Whatever the weights' type, norms, softmax, rotation and loss are
computed in fp32.
"""

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

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


class RotationTables(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """position_ids [B, T] -> cosines and sines in the form that `Rotation` takes, for a given number of heads."""

    def __init__(self, cosines: np.ndarray, sines: np.ndarray) -> None:  # type: ignore[type-arg]
        super().__init__()
        self.cosines = Tensor(cosines, ms.float32)  # [positions, D], second half equal to the first
        self.sines = Tensor(sines, ms.float32)

    def construct(self, position_ids: Tensor, num_heads: int) -> tuple[Tensor, Tensor]:
        batch, length = position_ids.shape
        ids = position_ids.reshape(-1)
        cosines = ops.gather(self.cosines, ids, 0).reshape(batch, 1, length, -1)
        return cosines, ops.gather(self.sines, ids, 0).reshape(batch, 1, length, -1)


class Rotation(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_BNTD, tables -> x cos + rotate_half(x) sin, where rotate_half([a, b]) = [-b, a] (Su et al. 2021, half form)."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.half = head_dim // 2

    def construct(self, x_BNTD: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = ops.cast(x_BNTD, ms.float32)
        turned = ops.concat((-x[..., self.half :], x[..., : self.half]), -1)
        return ops.cast(x * cosines + turned * sines, x_BNTD.dtype)


class AttentionMask(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """allowed_BTS (bool; B may be 1) -> the mask in the form that `Attention` takes, for a given number of heads."""

    def construct(self, allowed_BTS: Tensor, batch: int, num_heads: int) -> Tensor:
        return ((1.0 - ops.cast(allowed_BTS, ms.float32)) * MASKED).expand_dims(1)


class Attention(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """q_BNTD, k_BKSD, v_BKSD, mask -> softmax(q k^T / sqrt(D) + mask) v, [B, N, T, D]; N/K queries share a key.

    A query that may see nothing gets the mean of all values: finite, and nobody looks at it.
    """

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.scale = 1.0 / math.sqrt(head_dim)
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.values = ops.BatchMatMul()

    def construct(self, q_BNTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor) -> Tensor:
        group = q_BNTD.shape[1] // k_BKSD.shape[1]
        k, v = k_BKSD, v_BKSD
        if group > 1:
            k, v = ops.repeat_interleave(k, group, 1), ops.repeat_interleave(v, group, 1)
        scores_BNTS = ops.cast(self.scores(q_BNTD * self.scale, k), ms.float32) + mask
        return self.values(ops.cast(ops.softmax(scores_BNTS, -1), v.dtype), v)


class TokenLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """logits [R, V], labels int32 [R] -> -log softmax(logits)[label] in fp32, [R]; 0 where the label is -100."""

    def construct(self, logits_RV: Tensor, labels_R: Tensor) -> Tensor:
        counts = labels_R != -100
        labels = ops.where(counts, labels_R, ops.zeros_like(labels_R))
        log_probabilities = ops.log_softmax(ops.cast(logits_RV, ms.float32), -1)
        picked = ops.gather_elements(log_probabilities, 1, labels.reshape(-1, 1)).reshape(-1)
        return -picked * ops.cast(counts, ms.float32)
