# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""The loss of contract `batch`: a sum over labelled tokens and their number, never a mean."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_gptmodel.errors import ConfigError
from ms_gptmodel.kernels import select


class TokenLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """`token_loss` as a Cell, for users who put cells together.

    Args:
        label_smoothing: share of the target that is spread evenly over all ids (Szegedy et al. 2015, section 7).
        z_loss: coefficient of (log sum exp of the logits)^2, which keeps them from drifting (Chowdhery et al. 2022).
    """

    def __init__(self, *, label_smoothing: float = 0.0, z_loss: float = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise ConfigError(f"label_smoothing: expected 0 or more and below 1, found {label_smoothing!r}")
        if not 0 <= z_loss < float("inf"):
            raise ConfigError(f"z_loss: expected 0 or more, found {z_loss!r}")
        is_plain = label_smoothing == 0 and z_loss == 0
        kernels = select()
        self.losses = kernels.TokenLoss() if is_plain else kernels.RegularizedTokenLoss(label_smoothing, z_loss)

    def construct(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        labels_R = ops.cast(labels, ms.int32).reshape(-1)
        losses_R = self.losses(logits.reshape(-1, logits.shape[-1]), labels_R)
        return losses_R.sum(), ops.cast(labels_R != -100, ms.float32).sum()


def token_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy as (sum, count), both fp32 scalars; works inside a graph and under `value_and_grad`.

    Labels of -100 are ignored; with all labels ignored both are 0, and so are all gradients. With label smoothing or
    z-loss: `TokenLoss`.

    Args:
        logits: [..., vocab], any float type; computed in fp32.
        labels: integers of the leading shape of logits, -100 or 0 ... vocab - 1.
    """
    sum_and_count: tuple[Tensor, Tensor] = _TOKEN_LOSS(logits, labels)
    return sum_and_count


_TOKEN_LOSS = TokenLoss()
