"""Contract `model`, version 1, as data: the keys of config.json; `parameters` has the names and shapes."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from ms_weightconv.errors import ConfigError

FORMAT, VERSION = "ms-gptmodel.config", 1
REQUIRED = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "model_type": "llama", "padded_vocab_size": None, "num_key_value_heads": None, "head_dim": None,
    "embedding_size": None,
    "embedding_multiplier": 1.0, "embedding_norm": False, "type_vocab_size": 0, "norm_kind": "rms_norm",
    "norm_placement": "pre", "final_norm": True, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "norm_bias": False,
    "rms_norm_adds_one": False, "position_kind": "rotary", "position_offset": 0, "rope_theta": 10000.0,
    "rope_scaling": None, "rope_interleaved": False, "partial_rotary_factor": 1.0, "rope_local_base_freq": None,
    "is_causal": True, "sliding_window": None, "layer_types": None, "query_pre_attn_scalar": None,
    "attn_logit_softcapping": None, "final_logit_softcapping": None, "hidden_act": "silu", "gated_mlp": True,
    "parallel_residual": False, "parallel_norm_is_shared": False, "attention_bias": False,
    "attention_output_bias": False, "mlp_bias": False, "lm_head_bias": False, "lm_head_transform": False,
    "qk_norm": False, "tie_word_embeddings": False, "num_experts": 0, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "moe_intermediate_size": None, "mlp_only_layers": [],
    "shared_expert_intermediate_size": 0, "shared_expert_is_gated": False, "router_aux_loss_coef": 0.0,
    "router_z_loss_coef": 0.0, "embedding_dropout": 0.0, "residual_dropout": 0.0, "attention_dropout": 0.0,
    "dropout_seed": 0, "initializer_range": 0.02, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    "tokenizer_fingerprint": None,
}  # fmt: skip
_SAME_AS = {
    "padded_vocab_size": "vocab_size",
    "embedding_size": "hidden_size", "query_pre_attn_scalar": "head_dim", "moe_intermediate_size": "intermediate_size",
}  # fmt: skip
CHOICES = {
    "norm_kind": ("rms_norm", "layer_norm"),
    "norm_placement": ("pre", "post", "sandwich"),
    "position_kind": ("rotary", "learned", "alibi", "none"),
    "hidden_act": ("silu", "gelu", "gelu_new", "relu"),
}
ROPE_KEYS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "truncate",
    ),
    "longrope": ("short_factor", "long_factor", "attention_factor", "original_max_position_embeddings"),
}  # fmt: skip
"""The keys of `rope_scaling` beside `rope_type`, by type."""
LAYER_TYPES = ("full_attention", "sliding_attention")
_FROM_ZERO = (
    "router_aux_loss_coef", "router_z_loss_coef", "embedding_dropout", "residual_dropout", "attention_dropout",
)  # fmt: skip
_NUMBER_OR_NULL = (
    "rope_local_base_freq", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip
_EXPERT_KEYS = (
    "num_experts_per_tok", "norm_topk_prob", "mlp_only_layers", "shared_expert_intermediate_size",
    "shared_expert_is_gated", "router_aux_loss_coef", "router_z_loss_coef",
)  # fmt: skip
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
    _fill(config, what)
    _check_rope(what, config)
    if faults := list(_contradictions(config)):
        raise ConfigError(f"{what}: {'; '.join(faults)}")
    return config


def write_config(config: Config) -> dict[str, Any]:
    """The content of a config.json of contract `model`: every key."""
    return {"format": FORMAT, "version": VERSION, **config}


def _divide(hidden: int, heads: int, what: str) -> int:
    if hidden % heads:
        raise ConfigError(f"{what}: hidden_size {hidden} is no multiple of num_attention_heads {heads}; give head_dim")
    return hidden // heads


def _fill(config: Config, what: str) -> None:
    if config["num_key_value_heads"] is None:
        config["num_key_value_heads"] = config["num_attention_heads"]
    if config["head_dim"] is None:
        config["head_dim"] = _divide(config["hidden_size"], config["num_attention_heads"], what)
    for key, default in _SAME_AS.items():
        config[key] = config[default] if config[key] is None else config[key]


def _contradictions(config: Config) -> Iterator[str]:
    if config["num_attention_heads"] % config["num_key_value_heads"]:
        yield (
            f"num_attention_heads {config['num_attention_heads']} is no multiple of "
            f"num_key_value_heads {config['num_key_value_heads']}"
        )
    if config["padded_vocab_size"] < config["vocab_size"]:
        yield f"padded_vocab_size {config['padded_vocab_size']} is below vocab_size {config['vocab_size']}"
    if config["norm_kind"] == "layer_norm" and config["rms_norm_adds_one"]:
        yield "rms_norm_adds_one is true with norm_kind layer_norm"
    if config["norm_kind"] == "rms_norm" and config["norm_bias"]:
        yield "norm_bias is true with norm_kind rms_norm"
    if config["position_kind"] != "rotary" and (
        config["rope_interleaved"] or config["partial_rotary_factor"] != 1.0 or config["rope_local_base_freq"]
    ):
        yield f"rotary keys are set with position_kind {config['position_kind']}"
    if config["position_kind"] != "learned" and config["position_offset"]:
        yield f"position_offset is set with position_kind {config['position_kind']}"
    if config["parallel_norm_is_shared"] and not config["parallel_residual"]:
        yield "parallel_norm_is_shared is true without parallel_residual"
    if config["parallel_residual"] and config["norm_placement"] != "pre":
        yield f"parallel_residual is true with norm_placement {config['norm_placement']}"
    kinds, layers = config["layer_types"], config["num_hidden_layers"]
    if kinds is not None and len(kinds) != layers:
        yield f"layer_types: {len(kinds)} entries for {layers} layers"
    window, slides = config["sliding_window"], kinds is not None and "sliding_attention" in kinds
    if (window is None and slides) or (window is not None and kinds is not None and not slides):
        yield f"sliding_window is {config['sliding_window']} with layer_types {kinds!r:.200}"
    if config["num_experts"]:
        if config["num_experts_per_tok"] > config["num_experts"]:
            yield f"num_experts_per_tok {config['num_experts_per_tok']} of {config['num_experts']} experts"
        if config["mlp_only_layers"] and max(config["mlp_only_layers"]) >= layers:
            yield f"mlp_only_layers {config['mlp_only_layers']!r:.200} with {layers} layers"
    elif expert_keys := [key for key in _EXPERT_KEYS if config[key] != DEFAULTS[key]]:
        yield f"{', '.join(expert_keys)}: set, but num_experts is 0"
    if config["shared_expert_is_gated"] and not config["shared_expert_intermediate_size"]:
        yield "shared_expert_is_gated is true without a shared expert"


def _check_kind(what: str, key: str, value: Any, default: Any) -> None:
    if key in CHOICES:
        fits, expected = value in CHOICES[key], f"one of {', '.join(CHOICES[key])}"
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
    elif key == "layer_types":
        fits = value is None or (isinstance(value, list) and all(kind in LAYER_TYPES for kind in value))
        expected = f"a list of {', '.join(LAYER_TYPES)}, or null"
    elif key == "mlp_only_layers":
        fits = _is_layers(value) and value == sorted(set(value))
        expected = "a list of different layer numbers in order"
    elif key in _FROM_ZERO:
        least_below = 1.0 if key.endswith("dropout") else float("inf")
        fits, expected = _is_number(value) and 0 <= value < least_below, f"a number from 0 and below {least_below:g}"
    elif key in _NUMBER_OR_NULL:
        fits, expected = value is None or (_is_number(value) and 0 < value < float("inf")), "a number above 0, or null"
    elif isinstance(default, float):
        fits, expected = _is_number(value) and 0 < value < float("inf"), "a number above 0"
    elif default == 0 and default is not None:
        fits, expected = _is_whole(value, 0), "a whole number from 0"
    else:
        fits, expected = (value is None and default is None) or _is_whole(value, 1), "a whole number from 1"
    if not fits:
        raise ConfigError(f"{what}: {key}: expected {expected}, found {value!r:.200}")


def _is_whole(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 1 << 40


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_layers(value: Any) -> bool:
    return isinstance(value, list) and all(_is_whole(each, 0) for each in value)


def _check_rope(what: str, config: Config) -> None:
    scaling = config["rope_scaling"]
    if scaling is None:
        return
    kind = scaling.get("rope_type")
    if kind not in ROPE_KEYS:
        raise ConfigError(f"{what}: rope_scaling.rope_type: found {kind!r}, expected one of {', '.join(ROPE_KEYS)}")
    expected = {"rope_type", *ROPE_KEYS[kind]}
    if set(scaling) != expected:
        raise ConfigError(f"{what}: rope_scaling: found keys {sorted(scaling)}, {kind} needs {sorted(expected)}")
    rotated = int(config["head_dim"] * config["partial_rotary_factor"]) // 2
    for key in ROPE_KEYS[kind]:
        value = scaling[key]
        if key in ("short_factor", "long_factor"):
            if not isinstance(value, list) or len(value) != rotated or not all(map(_is_number, value)):
                raise ConfigError(f"{what}: rope_scaling.{key}: expected {rotated} numbers, found {value!r:.200}")
        else:
            _check_kind(what, f"rope_scaling.{key}", value, key == "truncate" or 1.0)
