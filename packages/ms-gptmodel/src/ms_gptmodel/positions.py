# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""Rotary positions: the angles, their scalings, and the tables made of them."""

import math

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.kernels import select


def rotary_frequencies(config: ModelConfig) -> np.ndarray:  # type: ignore[type-arg]
    """Angle per position of each pair, float64 [head_dim / 2] (Su et al. 2021, section 3.2.2), scaled if asked for.

    `linear` divides all by the factor. `llama3` divides those whose wave is longer than the original context by
    low_freq_factor, keeps those that fit high_freq_factor times, and blends between (Llama 3.1).
    """
    pairs = np.arange(0, config.head_dim, 2, dtype=np.float64)
    frequencies: np.ndarray = config.rope_theta ** (-pairs / config.head_dim)  # type: ignore[type-arg]
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling["rope_type"] == "linear":
        return frequencies / float(scaling["factor"])
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves_in_context = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    kept = np.clip((waves_in_context - low) / (high - low), 0.0, 1.0)
    stretched: np.ndarray = (1.0 - kept) * frequencies / scaling["factor"] + kept * frequencies  # type: ignore[type-arg]
    return stretched


def rotary_tables(config: ModelConfig, num_positions: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Cosines and sines, float32 [num_positions, head_dim], second half of a row equal to the first.

    The angles are multiplied in float64: at position 100,000 a product in fp32 is off by up to 0.004.
    """
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * rotary_frequencies(config)[None, :]
    angles = np.concatenate([angles, angles], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


class RotaryPositions(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """position_ids [B, T] -> (cosines, sines) for query heads and for key heads, made once for all layers."""

    def __init__(self, config: ModelConfig, num_positions: int) -> None:
        super().__init__()
        self.tables = select().RotationTables(*rotary_tables(config, num_positions))

    def construct(self, position_ids: Tensor, num_heads: int, num_key_value_heads: int) -> tuple[Tensor, ...]:
        query_cosines, query_sines = self.tables(position_ids, num_heads)
        key_cosines, key_sines = self.tables(position_ids, num_key_value_heads)
        return query_cosines, query_sines, key_cosines, key_sines


def counted_positions(batch: int, length: int) -> Tensor:
    """0, 1, 2 ... in every row, int32 [batch, length]."""
    return ops.broadcast_to(ops.cast(ops.arange(length), mstype.int32).reshape(1, length), (batch, length))
