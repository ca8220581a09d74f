"""Evaluation: the token-weighted loss of a data set and its perplexity, the same for any batch size and ranks.

Definition: loss = (sum of -log p(label) over all labels that are not -100) / (number of those labels), in nats;
perplexity = exp(loss); bits per byte = (that sum) / ln 2 / (bytes of the text that those labels stand for), which
tokenizers cannot change. Sums and counts are added over batches and ranks, never means.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from ms_trainloop.errors import BatchError
from ms_trainloop.loss import TokenLosses

_CHUNK = 2**20


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a data set costs the model."""

    loss: float
    """Token-weighted mean, in nats."""
    perplexity: float
    """exp(loss)."""
    tokens: int
    """Labels that took part, over all ranks."""
    bits_per_byte: float | None = None
    """Sum of the losses in bits over the bytes of the labels; None if the bytes of a token are not known."""

    @staticmethod
    def definition() -> str:
        """Returns what the numbers mean, in a line."""
        return (
            "evaluation: loss = sum of -log p(label) over labels that are not -100 / their number, in nats;"
            " perplexity = exp(loss); bits per byte = that sum / ln 2 / bytes of those labels; the same for any batch"
            " size and ranks"
        )


class Evaluator:
    """Evaluates one model again and again with one compiled graph per batch shape."""

    def __init__(
        self,
        model: nn.Cell,
        *,
        all_reduce: Callable[[Any], Any] | None = None,
        token_bytes: Sequence[int] | np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Keeps the model.

        Args:
            model: Called as in training.
            all_reduce: Maps a float32 tensor to its sum over the ranks; then every rank must call.
            token_bytes: Bytes of text that each id of the vocabulary stands for, 0 for special ids.
        """
        self._bytes = None if token_bytes is None else np.asarray(token_bytes, np.int64)
        self._model = model
        self._losses = _BatchLosses(model)
        self._all_reduce = all_reduce

    def __call__(self, batches: Iterable[Mapping[str, np.ndarray[Any, Any]]], *, limit: int = 0) -> Evaluation:
        """Evaluates `batches` (contract `batch`; at most `limit` of them unless 0), dropout off.

        The training flags of the model's cells are what they were before, also after an error.

        Raises:
            BatchError: There is no label in the whole set, over all ranks.
        """
        loss_sum, tokens, num_bytes = 0.0, 0, 0
        with evaluation_mode(self._model):
            for batch in islice(batches, limit or None):
                labels = np.ascontiguousarray(batch["labels"])
                keys = ("input_ids", "labels", "position_ids", "segment_ids")
                losses = self._losses(*(Tensor(np.ascontiguousarray(batch[key])) for key in keys)).asnumpy()
                # Summed here in float64, so that the batch size does not show in the rounding.
                loss_sum += float(losses.astype(np.float64).sum())
                tokens += int((labels >= 0).sum())
                if self._bytes is not None:
                    num_bytes += int(self._bytes[labels[labels >= 0]].sum())
        if self._all_reduce is not None:
            loss_sum, tokens, num_bytes = _reduce_exactly(loss_sum, tokens, num_bytes, self._all_reduce)
        if tokens == 0:
            raise BatchError("evaluation: found no label that is not -100; give a set with at least one")
        loss = loss_sum / tokens
        bits = loss_sum / math.log(2) / num_bytes if num_bytes else None
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return Evaluation(loss=loss, perplexity=perplexity, tokens=tokens, bits_per_byte=bits)


def evaluate(
    model: nn.Cell,
    batches: Iterable[Mapping[str, np.ndarray[Any, Any]]],
    *,
    limit: int = 0,
    all_reduce: Callable[[Any], Any] | None = None,
    token_bytes: Sequence[int] | np.ndarray[Any, Any] | None = None,
) -> Evaluation:
    """Evaluates once; see Evaluator, which keeps its compiled graph for the next time."""
    return Evaluator(model, all_reduce=all_reduce, token_bytes=token_bytes)(batches, limit=limit)


@contextmanager
def evaluation_mode(model: nn.Cell) -> Iterator[None]:
    """Turns dropout off inside the block and gives every cell its own training flag back after it."""
    flags = [(cell, cell.training) for _, cell in model.cells_and_names()]
    model.set_train(False)
    try:
        yield
    finally:
        for cell, is_training in flags:  # parents come before their children, so the last word is each cell's own
            cell.set_train(is_training)


class _BatchLosses(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Losses of all tokens of a batch, float32 [batch * seq], 0 where ignored."""

    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.token_losses = TokenLosses()

    def construct(self, input_ids: Any, labels: Any, position_ids: Any, segment_ids: Any) -> Any:
        logits = self.model(input_ids, position_ids, segment_ids)
        flat = ops.cast(logits, mindspore.float32).reshape((-1, logits.shape[-1]))
        return self.token_losses(flat, labels.reshape((-1,)))


def _reduce_exactly(
    loss_sum: float, tokens: int, num_bytes: int, all_reduce: Callable[[Any], Any]
) -> tuple[float, int, int]:
    """Sums over ranks through float32 without losing digits: each number travels in two parts."""
    high = float(np.float32(loss_sum))
    counts = [part for count in (tokens, num_bytes) for part in (count // _CHUNK, count % _CHUNK)]
    total = all_reduce(Tensor(np.array([high, loss_sum - high, *counts], np.float32))).asnumpy().astype(np.float64)
    whole = [int(total[i]) * _CHUNK + int(total[i + 1]) for i in (2, 4)]
    return float(total[0] + total[1]), whole[0], whole[1]
