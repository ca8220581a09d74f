"""Where two computations of the same model part, and which known mistake of a conversion explains it.

Arrays only: the two sides may be any frameworks. `B` batch, `T` positions.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_weightconv.contract import CHOICES, Config
from ms_weightconv.steps import Split, Step, Ungroup

Floats = NDArray[np.floating[Any]]
Arrays = dict[str, Floats]
TOLERANCE = 1e-4
"""Of the largest difference, relative to the largest value but at least 1; every known mistake exceeds it."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What a model computes for some ids."""

    logits: Floats
    """[B, T, vocab]."""
    layers: Sequence[Floats] = ()
    """[B, T, hidden] behind each block; may be empty where only logits are known."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Between two arrays."""

    largest: float
    """Largest absolute difference, divided by the larger of 1 and the largest reference value."""
    cosine: float
    """Of the angle between the two, flattened; 1 where they point the same way."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Differences of logits and of every layer."""

    logits: Difference
    """Of the logits."""
    layers: tuple[Difference, ...]
    """Of each block's output, where both sides give them."""
    tolerance: float
    """What counts as equal."""

    @property
    def is_equal(self) -> bool:
        """Whether the logits agree."""
        return self.logits.largest <= self.tolerance

    @property
    def first_diverging(self) -> str | None:
        """`layer N`, `head` where all layers agree, or None where the logits agree."""
        if self.is_equal:
            return None
        first = (n for n, layer in enumerate(self.layers) if not layer.largest <= self.tolerance)
        return next((f"layer {n}" for n in first), "head" if self.layers else "unknown: no layers were given")


def compare(ours: Outputs, theirs: Outputs, tolerance: float = TOLERANCE) -> Comparison:
    """Compares two sets of outputs of the same shapes; a NaN on either side is a difference."""
    return Comparison(
        logits=_difference(ours.logits, theirs.logits),
        layers=tuple(_difference(*pair) for pair in zip(ours.layers, theirs.layers, strict=False)),
        tolerance=tolerance,
    )


def find_causes(
    config: Config,
    arrays: Arrays,
    run: Callable[[Config, Arrays], Outputs | None],
    theirs: Outputs,
    tolerance: float = TOLERANCE,
) -> list[str]:
    """Tries what undoes each known mistake, in all layers and then in the first diverging one alone.

    Args:
        config: of contract `model`.
        arrays: the converted weights.
        run: computes the outputs of a config and weights; None for a config that no network has.
        theirs: the reference.
        tolerance: what counts as equal.

    Returns:
        The mistakes whose undoing makes the logits agree; empty if none does.
    """
    first = run(config, arrays)
    comparison = None if first is None else compare(first, theirs, tolerance)
    choices: list[tuple[str, range]] = [("", range(config["num_hidden_layers"]))]
    if comparison and comparison.first_diverging and comparison.first_diverging.startswith("layer "):
        number = int(comparison.first_diverging.removeprefix("layer "))
        choices.append((f" in {comparison.first_diverging} alone", range(number, number + 1)))
    for where, layers in choices:
        found = []
        for mistake, other_config, other_arrays in corrections(config, arrays, layers):
            outputs = run(other_config, other_arrays)
            if outputs is not None and compare(outputs, theirs, tolerance).is_equal:
                found.append(mistake + where)
        if found:
            return found
    return []


def corrections(config: Config, arrays: Arrays, layers: range) -> Iterator[tuple[str, Config, Arrays]]:
    """Each known mistake with the config and the weights that undo it; those that change nothing are left out."""
    for mistake, changed in _layouts(config, arrays, layers):
        yield mistake, config, {**arrays, **changed}
    if len(layers) == config["num_hidden_layers"]:
        for mistake, values in _settings(config):
            if any(config[key] != value for key, value in values.items()):
                yield mistake, {**config, **values}, arrays
        if "lm_head.weight" in arrays and arrays["lm_head.weight"].shape == arrays["embedding.weight"].shape:
            yield "head not tied to the embedding", config, {**arrays, "lm_head.weight": arrays["embedding.weight"]}


_EXCHANGES = (
    ("query and key exchanged", "attention.query.", "attention.key."),
    ("key and value exchanged", "attention.key.", "attention.value."),
    ("query and value exchanged", "attention.query.", "attention.value."),
    ("gate and up exchanged", "mlp.gate.", "mlp.up."),
    ("gate and up of the experts exchanged", "mlp.experts.gate.", "mlp.experts.up."),
    ("norms of attention and mlp exchanged", "attention_norm.", "mlp_norm."),
    ("norms before and behind the attention exchanged", "attention_norm.", "attention_post_norm."),
    ("norms before and behind the mlp exchanged", "mlp_norm.", "mlp_post_norm."),
    ("norms of query and key exchanged", "attention.query_norm.", "attention.key_norm."),
)


def _layouts(config: Config, arrays: Arrays, layers: range) -> Iterator[tuple[str, Arrays]]:
    inside = {name: array for name, array in arrays.items() if name.startswith(tuple(f"blocks.{n}." for n in layers))}
    for mistake, first, second in _EXCHANGES:
        pairs = [(name, name.replace(first, second)) for name in inside if first in name]
        if pairs and all(other in arrays and arrays[other].shape == arrays[name].shape for name, other in pairs):
            yield mistake, {a: arrays[b] for pair in pairs for a, b in (pair, pair[::-1])}
    for part in ("attention.query", "attention.key", "attention.value", "attention.output", "mlp.up", "mlp.down"):
        square = [name for name in inside if f".{part}.weight" in name and len({*arrays[name].shape}) == 1]
        if square:
            yield f"{part} not transposed", {name: arrays[name].T for name in square}
    for parts in (("query", "key"), ("query",), ("key",)):
        names = [name for name in inside for part in parts if f"attention.{part}." in name]
        what = " and ".join(parts)
        yield f"{what} in Meta's rotary order", {name: _rotary(config, arrays[name], True) for name in names}
        yield f"{what} turned into Meta's rotary order", {name: _rotary(config, arrays[name], False) for name in names}
    yield from _groupings(config, arrays, layers)


def _groupings(config: Config, arrays: Arrays, layers: range) -> Iterator[tuple[str, Arrays]]:
    by_kind, by_head = Split("query", "key", "value"), Ungroup()
    ways: tuple[tuple[str, Step, Step], ...] = (
        ("fused projection cut by head instead of into all queries, all keys, all values", by_head, by_kind),
        ("fused projection cut into all queries, all keys, all values instead of by head", by_kind, by_head),
    )
    for mistake, wrong, right in ways:
        changed: Arrays = {}
        for layer in layers:
            for kind in ("weight", "bias"):
                names = [f"blocks.{layer}.attention.{part}.{kind}" for part in ("query", "key", "value")]
                if all(name in arrays for name in names):
                    fused = wrong.backward([arrays[name] for name in names], config)
                    parts: list[Any] = right.forward(fused, config)
                    changed |= dict(zip(names, parts, strict=True))
        yield mistake, changed


def _rotary(config: Config, array: Floats, is_forward: bool) -> Floats:
    half = config["head_dim"] // 2
    split = (half, 2) if is_forward else (2, half)
    rest = array.shape[1:]
    return array.reshape(-1, *split, *rest).swapaxes(1, 2).reshape(array.shape)


def _settings(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    for activation in CHOICES["hidden_act"]:
        yield f"activation {config['hidden_act']} instead of {activation}", {"hidden_act": activation}
    key = "rms_norm_eps" if config["norm_kind"] == "rms_norm" else "layer_norm_eps"
    for eps in (1e-5, 1e-6, 1e-8, 1e-12):
        yield f"{key} {config[key]:g} instead of {eps:g}", {key: eps}
    for multiplier in (1.0, math.sqrt(config["hidden_size"])):
        yield f"scale of the embedding: not {multiplier:g}", {"embedding_multiplier": multiplier}
    for key in ("rms_norm_adds_one", "parallel_residual", "rope_interleaved", "is_causal", "norm_topk_prob"):
        yield f"{key} {config[key]} instead of {not config[key]}", {key: not config[key]}
    for scalar in (config["head_dim"], config["hidden_size"] // config["num_attention_heads"]):
        yield f"scale of attention scores: not the root of {scalar}", {"query_pre_attn_scalar": scalar}
    if config["position_kind"] == "rotary":
        for theta in (1e4, 5e5, 1e6):
            yield f"rope_theta {config['rope_theta']:g} instead of {theta:g}", {"rope_theta": theta}
        for share in (1.0, 0.5, 0.25):
            yield f"share of rotated numbers: not {share:g}", {"partial_rotary_factor": share}
        yield "rotary scaling that should not be there", {"rope_scaling": None}
    yield "attention window that should not be there", {"sliding_window": None, "layer_types": None}
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        yield f"{cap} that should not be there", {cap: None}


def _difference(ours: Floats, theirs: Floats) -> Difference:
    first, second = ours.astype(np.float64).ravel(), theirs.astype(np.float64).ravel()
    if first.shape != second.shape or not np.isfinite(first).all() or not np.isfinite(second).all():
        return Difference(largest=math.inf, cosine=math.nan)
    scale = max(1.0, float(np.abs(second).max(initial=0.0)))
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    cosine = float(first @ second) / norms if norms else 1.0
    return Difference(largest=float(np.abs(first - second).max(initial=0.0)) / scale, cosine=cosine)


def worst(comparisons: Mapping[str, Comparison]) -> tuple[str, Comparison]:
    """The name and the comparison with the largest difference of logits."""
    name = max(comparisons, key=lambda key: comparisons[key].logits.largest)
    return name, comparisons[name]
