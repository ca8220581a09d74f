"""A check of token ids on the host: a graph cannot do it, and an id of -1 would silently return a row."""

import numpy as np
from numpy.typing import ArrayLike

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.errors import InputError


def check_ids(config: ModelConfig, input_ids: ArrayLike, position_ids: ArrayLike | None = None) -> None:
    """Raises InputError, naming place and value, unless all ids and positions are the model's.

    Args:
        config: the model's config.
        input_ids: integers [batch, seq], 0 ... vocab_size - 1; seq at most max_position_embeddings.
        position_ids: integers [batch, seq], 0 ... max_position_embeddings - 1.
    """
    ids = np.asarray(input_ids)
    if ids.ndim != 2:
        raise InputError(f"input_ids: expected [batch, seq], found shape {ids.shape}")
    if ids.shape[1] > config.num_positions:
        limit = config.num_positions
        raise InputError(f"input_ids: rows of {ids.shape[1]} ids, max_position_embeddings is {limit}")
    _check_range("input_ids", ids, config.vocab_size, "vocab_size")
    if position_ids is not None:
        positions = np.asarray(position_ids)
        if positions.shape != ids.shape:
            raise InputError(f"position_ids: expected the shape of input_ids {ids.shape}, found {positions.shape}")
        _check_range("position_ids", positions, config.num_positions, "max_position_embeddings")


def _check_range(name: str, values: np.ndarray, limit: int, limit_name: str) -> None:  # type: ignore[type-arg]
    if values.dtype.kind not in "iu":
        raise InputError(f"{name}: expected integers, found {values.dtype}")
    wrong = np.argwhere((values < 0) | (values >= limit))
    if len(wrong):
        row, column = map(int, wrong[0])
        raise InputError(
            f"{name}[{row}, {column}] is {int(values[row, column])}: expected 0 to {limit - 1} ({limit_name} {limit})"
            f"; {len(wrong)} such in all"
        )
