"""How the next id is chosen from logits: in numpy, so that every runtime of a bundle can do the same."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ms_export.errors import PromptError


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of one generation."""

    max_new_tokens: int = 128
    """New ids per prompt at most."""
    temperature: float = 0.0
    """Divides the logits; 0 is greedy."""
    top_k: int = 0
    """The k largest logits stay; 0 means all."""
    top_p: float = 1.0
    """The fewest ids whose probabilities reach this sum stay; 1 means all."""

    def __post_init__(self) -> None:
        """Refuses impossible values by name."""
        for name, low in (("max_new_tokens", 1), ("top_k", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise PromptError(f"{name}: expected a whole number from {low}, found {value!r}")
        for name, fits in (("temperature", "0 or more"), ("top_p", "more than 0 and at most 1")):
            value = getattr(self, name)
            good = isinstance(value, int | float) and not isinstance(value, bool)
            if not good or not (0 <= value < float("inf") if name == "temperature" else 0 < value <= 1):
                raise PromptError(f"{name}: expected {fits}, found {value!r}")

    def pick(self, logits: npt.NDArray[np.float32], random: np.random.Generator) -> int:
        """Returns the next id.

        Temperature comes first, then top_k, then top_p (nucleus sampling, Holtzman et al. 2019) among what is left.
        Ties at the k-th place go to the smaller id.

        Args:
            logits: `[vocab]`, finite.
            random: The prompt's own generator; greedy choice does not draw from it.

        Raises:
            PromptError: A logit is not finite.
        """
        if not np.isfinite(logits).all():
            raise PromptError(
                f"{int((~np.isfinite(logits)).sum())} of {logits.size} logits are not finite; the weights are bad"
            )
        if self.temperature == 0:
            return int(logits.argmax())
        # float64, and the largest first: then tiny temperatures give zeros, never NaN.
        scores = (logits.astype(np.float64) - float(logits.max())) / self.temperature
        order = np.argsort(-scores, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        shares = np.exp(scores[order])
        sums = np.cumsum(shares)
        if self.top_p < 1:
            sums = sums[: int(np.searchsorted(sums, self.top_p * sums[-1])) + 1]
        place = int(np.searchsorted(sums, random.random() * sums[-1], side="right"))
        return int(order[min(place, sums.size - 1)])
