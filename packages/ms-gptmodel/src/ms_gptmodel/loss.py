# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The loss of contract `batch`: a sum over labelled tokens and their number, never a mean."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_gptmodel.kernels import select


class TokenLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """`token_loss` as a Cell, for users who put cells together."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = select().TokenLoss()

    def construct(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        labels_R = ops.cast(labels, ms.int32).reshape(-1)
        losses_R = self.losses(logits.reshape(-1, logits.shape[-1]), labels_R)
        return losses_R.sum(), ops.cast(labels_R != -100, ms.float32).sum()


def token_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy as (sum, count), both fp32 scalars; works inside a graph and under `value_and_grad`.

    Labels of -100 are ignored; with all labels ignored both are 0, and so are all gradients.

    Args:
        logits: [..., vocab], any float type; computed in fp32.
        labels: integers of the leading shape of logits, -100 or 0 ... vocab - 1.
    """
    sum_and_count: tuple[Tensor, Tensor] = _TOKEN_LOSS(logits, labels)
    return sum_and_count


_TOKEN_LOSS = TokenLoss()
