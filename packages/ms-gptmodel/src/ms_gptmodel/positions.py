# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""Where a token stands: rotation of queries and keys (Su et al. 2021), or a slope over distance (Press et al. 2021).

Shapes: B batch, T positions, P positions of the table, D head_dim, N heads.
"""

import math

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr
from numpy.typing import NDArray

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.frequencies import attention_factor, rotary_frequencies
from ms_gptmodel.kernels import select

Rotation = tuple[Tensor, ...]
"""Cosines and sines of queries, then those of keys, in the form of the kernels."""


def rotary_tables(
    config: ModelConfig, length: int, *, is_local: bool = False
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of every position, float32 [num_positions, head_dim]; what is not rotated has 1 and 0.

    The angles are multiplied in float64: at position 100,000 a product in fp32 is off by up to 0.004.

    Args:
        config: the model's.
        length: positions of the graph, on which some scalings depend.
        is_local: for layers that slide, which may have a base of their own and then no scaling.
    """
    theta, scaling = config.rope_theta, config.rope_scaling
    if is_local and config.rope_local_base_freq is not None:
        theta, scaling = config.rope_local_base_freq, None
    trained = config.max_position_embeddings
    frequencies = rotary_frequencies(theta, config.rotary_dim, scaling, length=length, trained_length=trained)
    angles = np.arange(config.num_positions, dtype=np.float64)[:, None] * frequencies[None, :]
    angles = np.repeat(angles, 2, axis=1) if config.rope_interleaved else np.concatenate([angles, angles], axis=1)
    factor, rest = attention_factor(scaling), config.head_dim - config.rotary_dim
    cosines = np.pad(np.cos(angles) * factor, ((0, 0), (0, rest)), constant_values=1.0)
    sines = np.pad(np.sin(angles) * factor, ((0, 0), (0, rest)))
    return cosines.astype(np.float32), sines.astype(np.float32)


class RotaryPositions(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """position_ids [B, T] of a graph of `length` positions -> what turns queries and keys, once for all layers."""

    def __init__(self, config: ModelConfig, *, is_local: bool = False) -> None:
        super().__init__()
        self.rows = select().RotationRows()
        self.depends_on_length = (config.rope_scaling or {}).get("rope_type") in ("dynamic", "longrope")
        cosines, sines = rotary_tables(config, 1, is_local=is_local)
        self.cosines_PD, self.sines_PD = Tensor(cosines), Tensor(sines)
        if self.depends_on_length:

            @constexpr  # type: ignore[untyped-decorator]  # computed once, when a graph is compiled
            def tables(length: int) -> tuple[Tensor, Tensor]:
                cosines, sines = rotary_tables(config, length, is_local=is_local)
                return Tensor(cosines), Tensor(sines)

            self.tables = tables

    def construct(self, position_ids: Tensor, num_heads: int, num_key_value_heads: int, length: int) -> Rotation:
        cosines_PD, sines_PD = self.cosines_PD, self.sines_PD
        if self.depends_on_length:
            cosines_PD, sines_PD = self.tables(length)
        query_cosines, query_sines = self.rows(cosines_PD, sines_PD, position_ids, num_heads)
        if num_heads == num_key_value_heads:
            return query_cosines, query_sines, query_cosines, query_sines
        key_cosines, key_sines = self.rows(cosines_PD, sines_PD, position_ids, num_key_value_heads)
        return query_cosines, query_sines, key_cosines, key_sines


class AlibiPositions(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """query_positions [B, T], key_positions [B, S] -> slope * (key position - query position), fp32 [B, N, T, S]."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.slopes_1N11 = Tensor(alibi_slopes(num_heads).reshape(1, -1, 1, 1))

    def construct(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        distances_BTS = key_positions.expand_dims(1) - query_positions.expand_dims(2)
        return ops.cast(distances_BTS, mstype.float32).expand_dims(1) * self.slopes_1N11


def alibi_slopes(num_heads: int) -> NDArray[np.float32]:
    """A slope a head: 2^(-8 i / N), i from 1 (Press et al. 2021, section 3).

    Where N is no power of two: those of the power below, then every other one of the power above.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (num_heads - power), 2)]
    return np.array(slopes, np.float32)


def counted_positions(batch: int, length: int) -> Tensor:
    """0, 1, 2 ... in every row, int32 [batch, length]."""
    return ops.broadcast_to(ops.cast(ops.arange(length), mstype.int32).reshape(1, length), (batch, length))
