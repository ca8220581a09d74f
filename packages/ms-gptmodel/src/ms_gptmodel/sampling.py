"""The choice of the next id from logits, on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ms_gptmodel.errors import ConfigError, InputError

_FIRST_LOOK = 256  # ids that top-p sorts at first; nearly always enough, and 100 times fewer than a vocabulary


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How text is continued."""

    max_new_tokens: int = 64
    """New ids a prompt gets at most."""
    temperature: float = 0.0
    """Divides the logits; 0 takes the most likely id every time."""
    top_k: int = 0
    """Draw from the k most likely ids; 0: from all."""
    top_p: float = 1.0
    """Draw from the most likely ids that together reach this probability; 1: from all."""
    min_p: float = 0.0
    """Draw from ids at least this many times as likely as the most likely one; 0: from all."""
    repetition_penalty: float = 1.0
    """Logits of ids that stand in the text are divided by it when positive, multiplied when negative; 1: not."""
    eos_token_ids: tuple | None = None  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """Ids that end a text; None: the model's; empty: none."""
    stop_strings: tuple = ()  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """Strings that end a text, in which they do not stand; need ids turned into text."""
    vocab_size: int = 0
    """Ids at or above are never produced (the tokenizer's true size, when the model's is padded); 0: the model's."""
    seed: int = 0
    """Of the draws; a prompt's draws depend on it and on the prompt's place in the list alone."""

    def __post_init__(self) -> None:
        if isinstance(self.eos_token_ids, list):
            object.__setattr__(self, "eos_token_ids", tuple(self.eos_token_ids))
        if isinstance(self.stop_strings, list):
            object.__setattr__(self, "stop_strings", tuple(self.stop_strings))
        self._check("max_new_tokens", self.max_new_tokens >= 1, "1 or more")
        self._check("temperature", 0 <= self.temperature < float("inf"), "0 or more")
        self._check("top_k", self.top_k >= 0, "0 or more")
        self._check("top_p", 0 < self.top_p <= 1, "above 0, at most 1")
        self._check("min_p", 0 <= self.min_p <= 1, "0 to 1")
        self._check("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "a positive number")
        ends = () if self.eos_token_ids is None else self.eos_token_ids
        sound = isinstance(ends, tuple) and all(type(i) is int and i >= 0 for i in ends)
        self._check("eos_token_ids", sound, "a list of ids")
        strings = isinstance(self.stop_strings, tuple) and all(isinstance(s, str) and s for s in self.stop_strings)
        self._check("stop_strings", strings, "a list of strings that are not empty")
        self._check("vocab_size", self.vocab_size >= 0, "0 or more")

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(f"generation.{name}: expected {expected}, found {getattr(self, name)!r}")


def choose(
    logits: np.ndarray,  # type: ignore[type-arg]
    config: GenerationConfig,
    generator: np.random.Generator,
    seen: Sequence[int] = (),
) -> int:
    """The next id, given its logits [vocab] and the ids `seen` so far.

    In Hugging Face's order: penalty (Keskar et al. 2019, section 4.1), temperature, top-k, top-p (Holtzman et al.
    2020, section 3.1), min-p (Nguyen et al. 2024, section 3). One number is drawn for an id, whatever the options.
    Of ids that are equally likely at the edge of top-k or top-p the lower ones are kept.

    Raises InputError when a logit is not a number or infinite.
    """
    logits = logits.astype(np.float64)
    if not np.isfinite(logits).all():
        raise InputError("logits: found NaN or infinity; the weights or the cache are broken")
    if config.repetition_penalty != 1.0 and len(seen):
        ids = np.unique(np.asarray(seen))
        ids = ids[ids < len(logits)]
        penalty = config.repetition_penalty
        logits[ids] = np.where(logits[ids] > 0, logits[ids] / penalty, logits[ids] * penalty)
    if config.temperature == 0:
        return int(logits.argmax())
    shares = np.exp((logits - logits.max()) / config.temperature)
    ids = np.arange(len(shares))
    if config.top_k:
        ids = _most_likely(shares, config.top_k)
    if config.top_p < 1:
        ids = _that_reach(shares, ids, config.top_p)
    if config.min_p > 0:
        ids = ids[shares[ids] >= config.min_p]  # the most likely id's share is 1
    sums = np.cumsum(shares[ids])
    place = int(np.searchsorted(sums, generator.random() * sums[-1], side="right"))
    return int(ids[min(place, len(ids) - 1)])


def _most_likely(shares: np.ndarray, count: int) -> np.ndarray:  # type: ignore[type-arg]
    """The `count` ids of the largest shares, most likely first."""
    if count < len(shares):
        least = np.partition(shares, -count)[-count]
        above = np.flatnonzero(shares > least)
        ids = np.concatenate([above, np.flatnonzero(shares == least)[: count - len(above)]])
    else:
        ids = np.arange(len(shares))
    ordered: np.ndarray = ids[np.argsort(-shares[ids], kind="stable")]  # type: ignore[type-arg]
    return ordered


def _that_reach(shares: np.ndarray, ids: np.ndarray, probability: float) -> np.ndarray:  # type: ignore[type-arg]
    """The most likely of `ids` that together reach the probability; the one that crosses it is kept."""
    limit = shares[ids].sum() * probability
    count = _FIRST_LOOK
    while True:
        first = ids[_most_likely(shares[ids], count)]
        sums = np.cumsum(shares[first])
        if sums[-1] >= limit or count >= len(ids):
            kept: np.ndarray = first[: int((sums < limit).sum()) + 1]  # type: ignore[type-arg]
            return kept
        count *= 8
