"""Contract `model`, version 1, as data: the keys of config.json, and every parameter's name and shape."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ms_weightconv.errors import ConfigError

FORMAT, VERSION = "ms-gptmodel.config", 1
REQUIRED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "model_type": "llama", "num_key_value_heads": None, "head_dim": None, "norm_kind": "rms_norm",
    "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "norm_bias": False, "position_kind": "rotary",
    "rope_theta": 10000.0, "rope_scaling": None, "hidden_act": "silu", "gated_mlp": True, "attention_bias": False,
    "attention_output_bias": False, "mlp_bias": False, "qk_norm": False, "tie_word_embeddings": False,
    "initializer_range": 0.02, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    "tokenizer_fingerprint": None,
}  # fmt: skip
_CHOICES = {
    "norm_kind": ("rms_norm", "layer_norm"),
    "position_kind": ("rotary", "learned"),
    "hidden_act": ("silu", "gelu", "gelu_new", "relu"),
}
_ROPE_KEYS = {
    "linear": ("rope_type", "factor"),
    "llama3": (
        "rope_type",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")
Config = dict[str, Any]
Shape = tuple[int, ...]


def read_config(values: Mapping[str, Any], what: str) -> Config:
    """Checks a config of contract `model` and fills in what is left out.

    `format` and `version` may be missing (a `model` section of a run's config has none) but not be different ones.

    Returns:
        All keys of the contract without `format` and `version`, in the contract's order.

    Raises:
        ConfigError: a key is unknown, missing or has an impossible value; `what` begins the message.
    """
    given = dict(values)
    found = (given.pop("format", FORMAT), given.pop("version", VERSION))
    if found != (FORMAT, VERSION):
        raise ConfigError(
            f"{what}: format {found[0]!r} version {found[1]!r}; this program reads {FORMAT!r} version {VERSION}"
        )
    known = (*REQUIRED, *DEFAULTS)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{what}: {key}: unknown key; {hint}")
    if missing := [key for key in REQUIRED if key not in given]:
        raise ConfigError(f"{what}: missing {', '.join(missing)}")
    config = {key: given[key] for key in REQUIRED} | {key: given.get(key, DEFAULTS[key]) for key in DEFAULTS}
    for key, default in ((key, DEFAULTS.get(key, 1)) for key in config):
        _check_kind(what, key, config[key], default)
    if config["num_key_value_heads"] is None:
        config["num_key_value_heads"] = config["num_attention_heads"]
    if config["head_dim"] is None:
        config["head_dim"] = _divide(config["hidden_size"], config["num_attention_heads"], what)
    if config["num_attention_heads"] % config["num_key_value_heads"]:
        raise ConfigError(
            f"{what}: num_attention_heads {config['num_attention_heads']} is no multiple of "
            f"num_key_value_heads {config['num_key_value_heads']}"
        )
    _check_rope(what, config["rope_scaling"])
    return config


def write_config(config: Config) -> dict[str, Any]:
    """The content of a config.json of contract `model`."""
    return {"format": FORMAT, "version": VERSION, **config}


def parameter_shapes(config: Config) -> dict[str, Shape]:
    """Every parameter of the network that a config describes, with its shape, in the contract's order."""
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    width = {part: part_width(config, part) for part in ("query", "key", "value")}
    shapes: dict[str, Shape] = {"embedding.weight": (vocab, hidden)}
    if config["position_kind"] == "learned":
        shapes["position_embedding.weight"] = (config["max_position_embeddings"], hidden)
    for layer in range(config["num_hidden_layers"]):
        block = f"blocks.{layer}"
        _add_norm(shapes, f"{block}.attention_norm", config)
        for part in ("query", "key", "value"):
            _add_linear(shapes, f"{block}.attention.{part}", (width[part], hidden), config["attention_bias"])
        if config["qk_norm"]:
            shapes[f"{block}.attention.query_norm.weight"] = (config["head_dim"],)
            shapes[f"{block}.attention.key_norm.weight"] = (config["head_dim"],)
        _add_linear(shapes, f"{block}.attention.output", (hidden, width["query"]), config["attention_output_bias"])
        _add_norm(shapes, f"{block}.mlp_norm", config)
        for part in ("gate", "up") if config["gated_mlp"] else ("up",):
            _add_linear(shapes, f"{block}.mlp.{part}", (inner, hidden), config["mlp_bias"])
        _add_linear(shapes, f"{block}.mlp.down", (hidden, inner), config["mlp_bias"])
    _add_norm(shapes, "norm", config)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def part_width(config: Config, part: str) -> int:
    """Output width of a projection that foreign layouts fuse with others: query, key, value, gate or up."""
    if part in ("gate", "up"):
        return int(config["intermediate_size"])
    heads = "num_attention_heads" if part == "query" else "num_key_value_heads"
    return int(config[heads] * config["head_dim"])


def _add_norm(shapes: dict[str, Shape], name: str, config: Config) -> None:
    shapes[f"{name}.weight"] = (config["hidden_size"],)
    if config["norm_kind"] == "layer_norm" and config["norm_bias"]:
        shapes[f"{name}.bias"] = (config["hidden_size"],)


def _add_linear(shapes: dict[str, Shape], name: str, shape: Shape, has_bias: bool) -> None:
    shapes[f"{name}.weight"] = shape
    if has_bias:
        shapes[f"{name}.bias"] = shape[:1]


def _divide(hidden: int, heads: int, what: str) -> int:
    if hidden % heads:
        raise ConfigError(f"{what}: hidden_size {hidden} is no multiple of num_attention_heads {heads}; give head_dim")
    return hidden // heads


def _check_kind(what: str, key: str, value: Any, default: Any) -> None:
    if key in _CHOICES:
        fits, expected = value in _CHOICES[key], f"one of {', '.join(_CHOICES[key])}"
    elif key == "model_type":
        fits, expected = isinstance(value, str) and bool(value), "a name"
    elif key == "tokenizer_fingerprint":
        fits = value is None or (isinstance(value, str) and bool(_FINGERPRINT.fullmatch(value)))
        expected = "sha256: and 64 hexadecimal digits, or null"
    elif key == "rope_scaling":
        fits, expected = value is None or isinstance(value, Mapping), "an object or null"
    elif key == "eos_token_id" and isinstance(value, list):
        fits = all(_is_whole(each, 0) for each in value) and 0 < len(value) == len(set(value))
        expected = "an id, a list of different ids, or null"
    elif key.endswith("_token_id"):
        fits, expected = value is None or _is_whole(value, 0), "an id or null"
    elif isinstance(default, bool):
        fits, expected = isinstance(value, bool), "true or false"
    elif isinstance(default, float):
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        expected = "a number above 0"
    else:
        fits, expected = (value is None and default is None) or _is_whole(value, 1), "a whole number from 1"
    if not fits:
        raise ConfigError(f"{what}: {key}: expected {expected}, found {value!r:.200}")


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 1 << 40


def _check_rope(what: str, scaling: Mapping[str, Any] | None) -> None:
    if scaling is None:
        return
    kind = scaling.get("rope_type")
    if kind not in _ROPE_KEYS:
        raise ConfigError(f"{what}: rope_scaling.rope_type: found {kind!r}, expected one of {', '.join(_ROPE_KEYS)}")
    if set(scaling) != set(_ROPE_KEYS[kind]):
        raise ConfigError(
            f"{what}: rope_scaling: found keys {sorted(scaling)}, {kind} needs {sorted(_ROPE_KEYS[kind])}"
        )
    for key in _ROPE_KEYS[kind][1:]:
        _check_kind(what, f"rope_scaling.{key}", scaling[key], 1.0)
