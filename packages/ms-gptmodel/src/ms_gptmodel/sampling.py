"""The choice of the next id from logits, on the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ms_gptmodel.errors import ConfigError


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
    repetition_penalty: float = 1.0
    """Logits of ids that stand in the text are divided by it when positive, multiplied when negative; 1: not."""
    eos_token_ids: tuple | None = None  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """Ids that end a text; None: the model's; empty: none."""
    vocab_size: int = 0
    """Ids at or above are never produced (the tokenizer's true size, when the model's is padded); 0: the model's."""
    seed: int = 0
    """Of the draws; a prompt's draws depend on it and on the prompt's place in the list alone."""

    def __post_init__(self) -> None:
        self._check("max_new_tokens", self.max_new_tokens >= 1, "1 or more")
        self._check("temperature", 0 <= self.temperature < float("inf"), "0 or more")
        self._check("top_k", self.top_k >= 0, "0 or more")
        self._check("top_p", 0 < self.top_p <= 1, "above 0, at most 1")
        self._check("repetition_penalty", 0 < self.repetition_penalty < float("inf"), "a positive number")
        ends = self.eos_token_ids or ()
        self._check("eos_token_ids", all(type(i) is int and i >= 0 for i in ends), "a list of ids")
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

    Top-k comes before top-p, as in Holtzman et al. 2020 and Hugging Face; both after the temperature.
    """
    logits = logits.astype(np.float64)
    if config.repetition_penalty != 1.0 and len(seen):
        ids = np.unique(np.asarray(seen))
        ids = ids[ids < len(logits)]
        penalty = config.repetition_penalty
        logits[ids] = np.where(logits[ids] > 0, logits[ids] / penalty, logits[ids] * penalty)
    if config.temperature == 0:
        return int(logits.argmax())
    logits /= config.temperature
    order = np.argsort(-logits, kind="stable")
    if config.top_k:
        order = order[: config.top_k]
    probabilities = np.exp(logits[order] - logits[order[0]])
    probabilities /= probabilities.sum()
    if config.top_p < 1:
        # The id that crosses the limit is kept, so there is always one.
        before = np.cumsum(probabilities) - probabilities
        kept = int((before < config.top_p).sum())
        order, probabilities = order[:kept], probabilities[:kept] / probabilities[:kept].sum()
    place = np.searchsorted(np.cumsum(probabilities), generator.random() * probabilities.sum(), side="right")
    return int(order[min(int(place), len(order) - 1)])
