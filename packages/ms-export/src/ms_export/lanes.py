"""How lists of ids become the arrays of a call: prompts padded on the right, lanes without work sent to scratch."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]


def prefill_lanes(
    prompts: Sequence[Sequence[int]], slots: Sequence[int], *, batch: int, length: int, scratch: int
) -> tuple[Int32, Int32, Int32]:
    """Returns `input_ids [batch, length]`, `lengths [batch]`, `slots [batch]`.

    Padding is id 0, which no graph looks at. A lane without a prompt is a prompt of one id 0 in the scratch slot.
    """
    ids = np.zeros((batch, length), np.int32)
    lengths = np.ones(batch, np.int32)
    for lane, prompt in enumerate(prompts):
        ids[lane, : len(prompt)] = prompt
        lengths[lane] = len(prompt)
    return ids, lengths, _slots(slots, batch, scratch)


def decode_lanes(
    ids: Sequence[int], positions: Sequence[int], slots: Sequence[int], *, batch: int, scratch: int
) -> tuple[Int32, Int32, Int32]:
    """Returns `input_ids [batch, 1]`, `positions [batch]`, `slots [batch]`; idle lanes write row 0 of scratch."""
    input_ids, places = np.zeros((batch, 1), np.int32), np.zeros(batch, np.int32)
    input_ids[: len(ids), 0] = ids
    places[: len(positions)] = positions
    return input_ids, places, _slots(slots, batch, scratch)


def _slots(slots: Sequence[int], batch: int, scratch: int) -> Int32:
    lanes = np.full(batch, scratch, np.int32)
    lanes[: len(slots)] = slots
    return lanes
