"""Generation over the lanes of a cache: prompts enter as lanes fall free, each sampled as if it were alone."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ms_export.errors import PromptError
from ms_export.sampling import Sampling

Stop = Callable[[int, int], bool]
"""From (prompt number, id just generated) to whether that prompt ends with it."""


class Decoder(Protocol):
    """What generation needs: the cached call with free choice of lanes, and slots to put lanes into."""

    @property
    def max_length(self) -> int:
        """Ids that a slot holds."""

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits `[lanes, vocab]` after each prompt."""

    def decode(self, ids: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> npt.NDArray[np.float32]:
        """Logits `[lanes, vocab]` after one more id per lane."""

    def take_slots(self, wanted: int) -> list[int]:
        """Up to `wanted` slots that nobody uses; at least one."""

    def return_slots(self, slots: Sequence[int]) -> None:
        """Gives slots back."""


@dataclass(frozen=True, kw_only=True)
class Token:
    """One event of a stream: a new id of a prompt, its end, or both."""

    prompt: int
    """Number of the prompt in the call."""
    id: int | None
    """The new id; None where the prompt ends without one (an end id, or no room)."""
    finish_reason: str | None = None
    """"stop" (an end id or stop string) or "length" (max_new_tokens or max_length reached); None while it goes on."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What was generated for one prompt."""

    ids: list[int]
    """New ids, without the end id."""
    finish_reason: str
    """"stop" or "length"."""


@dataclass(kw_only=True)
class _Lane:
    prompt: int
    slot: int
    position: int
    random: np.random.Generator
    last: int = 0
    new: int = 0
    finish_reason: str | None = field(default=None)


def stream(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling,
    eos_token_ids: Sequence[int],
    seed: int = 0,
    stop: Stop | None = None,
) -> Generator[Token, None, None]:
    """Yields the new ids of all prompts as they come.

    Prompt number n draws from its own generator, seeded with `seed + n`: what it gets does not depend on the others.

    Raises:
        PromptError: No slot is free.
    """
    ends, waiting = frozenset(eos_token_ids), deque(enumerate(prompts))
    free = decoder.take_slots(len(prompts))
    held = list(free)
    lanes: list[_Lane] = []
    try:
        while waiting or lanes:
            entering = []
            while waiting and free:
                number, prompt = waiting.popleft()
                random = np.random.default_rng(seed + number)
                entering.append(_Lane(prompt=number, slot=free.pop(), position=len(prompt) - 1, random=random))
            results = []
            if entering:
                logits = decoder.prefill([prompts[lane.prompt] for lane in entering], [lane.slot for lane in entering])
                results += list(zip(entering, logits, strict=True))
            if lanes:
                for lane in lanes:
                    lane.position += 1
                logits = decoder.decode(*zip(*((lane.last, lane.position, lane.slot) for lane in lanes), strict=True))
                results += list(zip(lanes, logits, strict=True))
            for lane, row in results:
                yield _advance(lane, row, decoder.max_length, sampling, ends, stop)
            lanes = [lane for lane, _ in results if lane.finish_reason is None]
            free += [lane.slot for lane, _ in results if lane.finish_reason is not None]
    finally:
        decoder.return_slots(held)


def collect(tokens: Iterator[Token], count: int) -> list[Generation]:
    """Runs a stream to its end and returns what each of the `count` prompts got."""
    ids: list[list[int]] = [[] for _ in range(count)]
    reasons = [""] * count
    for token in tokens:
        if token.id is not None:
            ids[token.prompt].append(token.id)
        reasons[token.prompt] = token.finish_reason or ""
    return [Generation(ids=i, finish_reason=r) for i, r in zip(ids, reasons, strict=True)]


def _advance(
    lane: _Lane, logits: npt.NDArray[np.float32], room: int, sampling: Sampling, ends: frozenset[int], stop: Stop | None
) -> Token:
    length = lane.position + 1  # ids in the slot so far
    if length >= room:
        lane.finish_reason = "length"
        return Token(prompt=lane.prompt, id=None, finish_reason="length")
    chosen = sampling.pick(logits, lane.random)
    if chosen in ends:
        lane.finish_reason = "stop"
        return Token(prompt=lane.prompt, id=None, finish_reason="stop")
    lane.last, lane.new = chosen, lane.new + 1
    if stop is not None and stop(lane.prompt, chosen):
        lane.finish_reason = "stop"
    elif lane.new >= sampling.max_new_tokens or length + 1 >= room:
        lane.finish_reason = "length"
    return Token(prompt=lane.prompt, id=chosen, finish_reason=lane.finish_reason)


def require_ids(prompts: Sequence[Sequence[int]], *, longest: int, vocab_size: int) -> list[list[int]]:
    """Returns the prompts as lists of Python ints.

    Raises:
        PromptError: Naming the prompt that is empty, too long, not a list of whole numbers, or outside the vocabulary.
    """
    ready = []
    if isinstance(prompts, str | bytes):
        raise PromptError("prompts: expected lists of ids, found text; use generate_text")
    for number, prompt in enumerate(prompts):
        name = f"prompt {number}"
        if isinstance(prompt, str | bytes | int | float):
            raise PromptError(f"{name}: expected a list of ids, found {prompt!r}")
        try:
            array = np.asarray(prompt)
        except ValueError as error:  # rows of unequal length
            raise PromptError(f"{name}: expected one row of ids, found {prompt!r}") from error
        if array.ndim != 1:
            raise PromptError(f"{name}: expected one row of ids, found shape {list(array.shape)}")
        if array.size == 0:
            raise PromptError(f"{name}: is empty; expected 1 to {longest} ids")
        if not np.issubdtype(array.dtype, np.integer):
            raise PromptError(f"{name}: expected whole numbers, found {array.dtype.name}")
        if array.size > longest:
            raise PromptError(f"{name}: {array.size} ids, but the bundle's longest prefill graph takes {longest}")
        wrong = array[(array < 0) | (array >= vocab_size)]
        if wrong.size:
            raise PromptError(f"{name}: id {wrong[0]} is outside the vocabulary of {vocab_size}")
        ready.append(array.tolist())
    return ready


def require_seed(seed: object) -> int:
    """Returns the seed; raises PromptError when it is no whole number from 0."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise PromptError(f"seed: expected a whole number from 0, found {seed!r}")
    return seed
