"""Fresh weights as a function of (seed, parameter name) alone, so that neither order nor sharding changes them."""

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from ms_gptmodel.config import ModelConfig


def initial_weight(config: ModelConfig, name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """The fresh value of the parameter `name` of contract `model`, float32.

    Norm weights are 1 (0 where norms add one), biases 0, all else normal with initializer_range; what writes to the
    residual stream (attention output, any down) is divided by sqrt(2 * layers), as GPT-2 does (Radford et al. 2019,
    section 2.3).
    """
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    if name.endswith("norm.weight"):
        return np.full(shape, 0.0 if config.rms_norm_adds_one else 1.0, np.float32)
    std = config.initializer_range
    if name.endswith((".attention.output.weight", ".down.weight")):
        std /= math.sqrt(2 * config.num_hidden_layers)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    return generator.standard_normal(shape, dtype=np.float32) * np.float32(std)


def initial_weights(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """`initial_weight` of every name in `shapes`."""
    return {name: initial_weight(config, name, shape, seed) for name, shape in shapes.items()}
