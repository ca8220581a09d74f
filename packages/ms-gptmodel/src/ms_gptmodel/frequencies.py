"""Rotary frequencies and their scalings: the angle by which a pair of numbers turns from one position to the next."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEYS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate"),
    "longrope": ("short_factor", "long_factor", "attention_factor", "original_max_position_embeddings"),
}


def scaling_fault(scaling: Mapping[str, Any], rotary_dim: int) -> str | None:
    """What `rope_scaling` should have been, where it is not one of contract `model`; None where it is."""
    kind = scaling.get("rope_type")
    if not isinstance(kind, str) or kind not in _KEYS:
        return f"rope_type {', '.join(_KEYS)}"
    if set(scaling) != {"rope_type", *_KEYS[kind]}:
        return f"exactly the keys {', '.join(sorted({'rope_type', *_KEYS[kind]}))}"
    for key in _KEYS[kind]:
        value = scaling[key]
        if key in ("short_factor", "long_factor"):
            if (
                not isinstance(value, list | tuple)
                or len(value) != rotary_dim // 2
                or not all(map(_is_positive, value))
            ):
                return f"{rotary_dim // 2} positive numbers in {key}"
        elif key == "truncate":
            if not isinstance(value, bool):
                return "truncate true or false"
        elif key == "original_max_position_embeddings":
            if type(value) is not int or value < 1:
                return f"a whole number of {key}"
        elif not _is_positive(value) or (key == "factor" and value < 1):
            return "positive numbers, factor 1 or more"
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        return "low_freq_factor below high_freq_factor"
    if kind == "yarn" and scaling["beta_slow"] > scaling["beta_fast"]:
        return "beta_slow at most beta_fast"
    if kind == "dynamic" and rotary_dim <= 2:
        return "more than 2 rotated numbers a head with dynamic"
    return None


def rotary_frequencies(
    theta: float, rotary_dim: int, scaling: Mapping[str, Any] | None = None, *, length: int = 1, trained_length: int = 1
) -> NDArray[np.float64]:
    """Angle per position of each pair, float64 [rotary_dim / 2] (Su et al. 2021, section 3.2.2), scaled if asked for.

    `linear` divides all by the factor. `dynamic` enlarges theta for a graph of `length` positions beyond
    `trained_length`. `llama3` divides those whose wave is longer than the original context by low_freq_factor, keeps
    those that fit high_freq_factor times, and blends between (Llama 3.1). `yarn` does so by the number of turns in the
    original context, beta_fast to beta_slow (Peng et al. 2023, section 3.2). `longrope` divides each by its own number
    (Ding et al. 2024), other ones for a graph longer than the original context.
    """
    kind = scaling["rope_type"] if scaling else None
    if scaling and kind == "dynamic" and length > trained_length:
        stretch = scaling["factor"] * length / trained_length - (scaling["factor"] - 1)
        theta = theta * stretch ** (rotary_dim / (rotary_dim - 2))
    pairs = np.arange(0, rotary_dim, 2, dtype=np.float64)
    frequencies: NDArray[np.float64] = theta ** (-pairs / rotary_dim)
    if not scaling or kind == "dynamic":
        return frequencies
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    if kind == "longrope":
        is_long = length > scaling["original_max_position_embeddings"]
        return frequencies / np.asarray(scaling["long_factor" if is_long else "short_factor"], np.float64)
    if kind == "yarn":
        kept = _yarn_kept(theta, rotary_dim, scaling)
    else:
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    blended: NDArray[np.float64] = (1.0 - kept) * frequencies / scaling["factor"] + kept * frequencies
    return blended


def attention_factor(scaling: Mapping[str, Any] | None) -> float:
    """What cosines and sines are multiplied by."""
    return float(scaling.get("attention_factor", 1.0)) if scaling else 1.0


def _yarn_kept(theta: float, rotary_dim: int, scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    """Share of each frequency that is not stretched: 1 for fast pairs, 0 for slow ones, a ramp between."""

    def pair_that_turns(times: float) -> float:
        wave = scaling["original_max_position_embeddings"] / (times * 2 * math.pi)
        return rotary_dim * math.log(wave) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling["beta_fast"]), pair_that_turns(scaling["beta_slow"])
    if scaling["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    width = high - low or 0.001
    ramp: NDArray[np.float64] = np.clip((np.arange(rotary_dim // 2) - low) / width, 0.0, 1.0)
    return 1.0 - ramp


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
