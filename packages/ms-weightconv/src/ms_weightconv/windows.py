"""Attention windows both ways: which layers see only the nearest positions, and how many of them."""

from collections.abc import Callable
from typing import Any

from ms_weightconv.contract import LAYER_TYPES, Config
from ms_weightconv.errors import ConfigError
from ms_weightconv.family import Derived, TheirConfig

_OUR_KEYS = ("sliding_window", "layer_types")


def one_window(default: int | None, switch: str | None = None) -> Derived:
    """Families whose layers all see the same: `sliding_window`, in force where `switch` is true, if they have one."""

    def read(theirs: TheirConfig) -> Config:
        window = theirs.get("sliding_window", default) if switch is None or theirs.get(switch) else None
        return {"sliding_window": window, "layer_types": None}

    def write(config: Config) -> dict[str, Any]:
        window = config["sliding_window"]
        return {"sliding_window": window} | ({switch: window is not None} if switch else {})

    return Derived(("sliding_window", "layer_types", *((switch,) if switch else ())), _OUR_KEYS, read, write)


def mixed_windows(
    pattern: Callable[[TheirConfig, int], bool],
    *pattern_keys: str,
    default: int = 4096,
    switch: str | None = None,
) -> Derived:
    """Families whose layers differ.

    Args:
        pattern: whether layer n slides, by transformers' rule for a config without `layer_types`.
        *pattern_keys: the keys that the rule reads.
        default: the window when the file has none.
        switch: a key that must be true for any layer to slide.
    """

    def read(theirs: TheirConfig) -> Config:
        layers, kinds = theirs.get("num_hidden_layers"), theirs.get("layer_types")
        window = theirs.get("sliding_window", default) if switch is None or theirs.get(switch) else None
        if not isinstance(layers, int) or not 0 < layers < 1 << 20:
            raise ConfigError(f"num_hidden_layers: found {layers!r:.100}, expected a number of layers")
        if kinds is None:
            try:
                slides = [window is not None and pattern(theirs, layer) for layer in range(layers)]
            except (TypeError, ArithmeticError) as error:
                raise ConfigError(f"{', '.join(pattern_keys)}: impossible values ({error})") from error
            kinds = ["sliding_attention" if each else "full_attention" for each in slides]
        if not isinstance(kinds, list) or any(kind not in LAYER_TYPES for kind in kinds):
            raise ConfigError(f"layer_types: found {kinds!r:.200}: expected full_attention and sliding_attention")
        if len(kinds) != layers:
            raise ConfigError(f"layer_types: {len(kinds)} entries for {layers} layers")
        if "sliding_attention" not in kinds:
            return {"sliding_window": None, "layer_types": None}
        if window is None:
            raise ConfigError(f"layer_types: found sliding_attention, but sliding_window is {window!r}")
        return {"sliding_window": window, "layer_types": kinds if "full_attention" in kinds else None}

    def write(config: Config) -> dict[str, Any]:
        window, layers = config["sliding_window"], config["num_hidden_layers"]
        every = "full_attention" if window is None else "sliding_attention"
        kinds = config["layer_types"] or [every] * layers
        theirs: dict[str, Any] = {"layer_types": list(kinds)}
        if switch:
            theirs[switch] = window is not None
        if window is not None:
            theirs["sliding_window"] = window
        if "max_window_layers" in pattern_keys and window is not None:
            theirs["max_window_layers"] = next(n for n in range(layers) if kinds[n] == "sliding_attention")
        return theirs

    their_keys = ("sliding_window", "layer_types", *((switch,) if switch else ()), *pattern_keys)
    return Derived(their_keys, _OUR_KEYS, read, write)
