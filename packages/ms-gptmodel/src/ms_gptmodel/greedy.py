# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""Several greedy steps in one call: on a CPU, calling a graph costs a third of a small model's step.

Shapes: B lanes, N steps, V ids of the vocabulary.
"""

import mindspore as ms
from mindspore import Tensor, nn, ops


class GreedyCell(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """input_ids [B, 1], positions [B], slots [B], int32 -> the next N ids [B, N], and whether all logits were finite.

    It goes on for N steps whatever the ids are; who calls it drops what comes after an end. A lane that reaches the
    last position of the window stays there: what it gets from then on is to be dropped too.

    Args:
        decode: the cell that makes one step.
        window: positions that it sees.
        vocab_size: ids from here on are never chosen.
        num_steps: N.
    """

    def __init__(self, decode: nn.Cell, *, window: int, vocab_size: int, num_steps: int) -> None:
        super().__init__(auto_prefix=False)  # putting the model in here must not rename its parameters
        self.decode, self.vocab_size, self.num_steps = decode, vocab_size, num_steps
        self.last = window - 1
        self.first = Tensor(0, ms.int32)

    def construct(self, input_ids: Tensor, positions: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        batch = input_ids.shape[0]
        chosen_NB = ops.zeros((self.num_steps, batch), ms.int32)
        is_finite = ops.ones((1,), ms.float32)
        step = self.first
        while step < self.num_steps:
            logits_BV = self.decode(input_ids, positions, slots)[:, : self.vocab_size]
            is_finite = is_finite * ops.cast(ops.isfinite(logits_BV), ms.float32).min()
            input_ids = ops.cast(ops.argmax(logits_BV, -1, True), ms.int32)
            chosen_NB = ops.tensor_scatter_update(chosen_NB, step.reshape(1, 1), input_ids.reshape(1, batch))
            positions = ops.minimum(positions + 1, self.last)
            step = step + 1
        return ops.transpose(chosen_NB, (1, 0)), is_finite
