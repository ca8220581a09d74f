# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The losses of kernels_plain for CPU: forward makes one array of the logits' shape, backward needs none of it.

Shapes: R rows (batch times length), V ids of the vocabulary.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops

_multiply = ops.MatMul()


class TokenLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain; the gradient is one pass of the fused operator and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.log_softmax = ops.LogSoftmax()
        self.gradient = ops.SparseSoftmaxCrossEntropyWithLogits(is_grad=True)
        self.pick = ops.GatherD()

    def construct(self, logits_RV: Tensor, labels_R: Tensor) -> Tensor:
        counts, labels = split_labels(labels_R)
        log_probabilities = self.log_softmax(ops.cast(logits_RV, ms.float32))
        return -self.pick(log_probabilities, 1, labels.reshape(-1, 1)).reshape(-1) * counts

    def bprop(self, logits_RV: Tensor, labels_R: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        num_rows, num_ids = logits_RV.shape
        counts, labels = split_labels(labels_R)
        gradient = self.gradient(ops.cast(logits_RV, ms.float32), labels)  # of the mean over rows
        weights = (dout * counts * float(num_rows)).reshape(-1, 1)
        gradient = gradient * _multiply(weights, ops.ones((1, num_ids), ms.float32))
        return ops.cast(gradient, logits_RV.dtype), ops.zeros_like(labels_R)


class RegularizedTokenLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """As kernels_plain."""

    def __init__(self, label_smoothing: float, z_loss: float) -> None:
        super().__init__()
        self.losses = _LossesAndSums(label_smoothing, z_loss)

    def construct(self, logits_RV: Tensor, labels_R: Tensor) -> Tensor:
        return self.losses(logits_RV, labels_R)[0]


class _LossesAndSums(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """logits, labels -> (losses [R], log sum exp [R]); the second is for the backward pass."""

    def __init__(self, label_smoothing: float, z_loss: float) -> None:
        super().__init__()
        self.smoothing, self.z = label_smoothing, z_loss
        self.log_softmax = ops.LogSoftmax()
        self.gradient = ops.SparseSoftmaxCrossEntropyWithLogits(is_grad=True)
        self.pick = ops.GatherD()

    def construct(self, logits_RV: Tensor, labels_R: Tensor) -> tuple[Tensor, Tensor]:
        counts, labels = split_labels(labels_R)
        x, column = ops.cast(logits_RV, ms.float32), labels.reshape(-1, 1)
        picked = self.pick(self.log_softmax(x), 1, column).reshape(-1)
        lse = self.pick(x, 1, column).reshape(-1) - picked
        even = ops.mean(x, -1) - lse
        losses = -(1.0 - self.smoothing) * picked - self.smoothing * even + self.z * lse * lse
        return losses * counts, lse

    def bprop(
        self, logits_RV: Tensor, labels_R: Tensor, out: tuple[Tensor, Tensor], dout: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        # p a - (1 - e) label - e / V, where a = 1 + 2 z lse, written with p - label, which the operator gives.
        num_rows, num_ids = logits_RV.shape
        counts, labels = split_labels(labels_R)
        weights, extra = dout[0] * counts, 2.0 * self.z * out[1]
        gradient = self.gradient(ops.cast(logits_RV, ms.float32), labels) * float(num_rows)
        ones = ops.ones((1, num_ids), ms.float32)
        gradient = gradient * _multiply((weights * (1.0 + extra)).reshape(-1, 1), ones)
        rows = ops.cast(ops.arange(num_rows), ms.int32)
        places = ops.stack((rows, labels), 1)
        gradient = ops.tensor_scatter_add(gradient, places, weights * (extra + self.smoothing))
        if self.smoothing > 0:
            gradient = gradient - _multiply((weights * (self.smoothing / num_ids)).reshape(-1, 1), ones)
        return ops.cast(gradient, logits_RV.dtype), ops.zeros_like(labels_R)


def split_labels(labels_R: Tensor) -> tuple[Tensor, Tensor]:
    """1 for a label that counts and 0 for -100, float32 [R]; the labels with 0 for -100."""
    counts = labels_R != -100
    return ops.cast(counts, ms.float32), labels_R * ops.cast(counts, ms.int32)
