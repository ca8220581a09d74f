"""Masked-language-model batches for encoders: which ids are hidden is drawn anew each time a row comes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.batches import IGNORED_LABEL, SpecialIds
from ms_dataprep.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """How ids are hidden (BERT, arXiv:1810.04805, section 3.1)."""

    mask_id: int
    """The id that hides another."""
    share: float = 0.15
    """Share of ids to predict, 0 to 1; document ends, begins and padding are never among them."""
    mask_share: float = 0.8
    """Of those, the share that mask_id replaces."""
    random_share: float = 0.1
    """And the share that a random id replaces; the rest stay as they are."""

    def __post_init__(self) -> None:
        """Raises ConfigError for shares that are none."""
        if self.mask_id < 0:
            raise ConfigError(f"mask_id: expected 0 or more, found {self.mask_id}")
        for name in ("share", "mask_share", "random_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: expected 0 to 1, found {getattr(self, name)}")
        if self.mask_share + self.random_share > 1:
            raise ConfigError(f"random_share: with mask_share more than 1, found {self.mask_share + self.random_share}")


def mask_batch(
    batch: Mapping[str, NDArray[Any]], config: MaskingConfig, special: SpecialIds, *, seed: int, vocab_size: int
) -> dict[str, NDArray[Any]]:
    """A batch [B, S] whose labels are the hidden ids themselves, and -100 everywhere else.

    What is hidden in a row is a function of (seed, sample number) alone, so it differs between epochs and is the same
    for any number of ranks and after a restart.

    Args:
        batch: of `make_batch`, with `sample_ids`.
        config: shares and the hiding id.
        special: ids that are never hidden and never put in for others.
        seed: the run's.
        vocab_size: random ids lie below it.
    """
    ids = batch["input_ids"]
    kept = [number for number in (special.eod, special.pad, special.bos) if number is not None]
    candidates = (batch["segment_ids"] > 0) & ~np.isin(ids, kept)
    draws = np.empty((2, *ids.shape), dtype=np.float32)
    others = np.empty_like(ids)
    allowed = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), [*kept, config.mask_id])
    for row, sample in enumerate(batch["sample_ids"].tolist()):
        # A padding row of an evaluation has number -1 and no candidates.
        random = np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, sample % 2**64], dtype=np.uint64)))
        random.random(dtype=np.float32, out=draws[0, row])
        random.random(dtype=np.float32, out=draws[1, row])
        others[row] = allowed[random.integers(0, len(allowed), ids.shape[1])]
    is_chosen = candidates & (draws[0] < config.share)
    is_masked = is_chosen & (draws[1] < config.mask_share)
    is_random = is_chosen & ~is_masked & (draws[1] < config.mask_share + config.random_share)
    hidden = np.where(is_masked, np.int32(config.mask_id), np.where(is_random, others, ids))
    labels = np.where(is_chosen, ids, np.int32(IGNORED_LABEL))
    return {**batch, "input_ids": hidden, "labels": labels}
