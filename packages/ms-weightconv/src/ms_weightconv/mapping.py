"""Config mapping: how a Hugging Face config.json becomes a config of contract `model`, and back from the same lines.

A key that changes the computation in a way that contract `model` cannot say is refused by name. Keys without effect
on inference are kept (see `sidecar`), unknown ones are kept and reported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ms_weightconv.contract import Config, read_config
from ms_weightconv.errors import ConfigError
from ms_weightconv.rules import Drop, Rule, Tie

REQUIRED = object()
TheirConfig = Mapping[str, Any]

# Keys that name things, steer training or describe files: no influence on the logits of a forward pass.
_WITHOUT_EFFECT = frozenset({
    "_attn_implementation", "_name_or_path", "architectures", "attention_dropout", "attn_pdrop",
    "chunk_size_feed_forward", "classifier_dropout", "dtype", "embd_pdrop", "finetuning_task",
    "gradient_checkpointing", "id2label", "is_decoder", "label2id", "layer_types", "max_window_layers",
    "model_type", "n_ctx", "name_or_path", "output_attentions", "output_hidden_states", "pretraining_tp",
    "problem_type", "reorder_and_upcast_attn", "resid_pdrop", "return_dict", "return_dict_in_generate",
    "sep_token_id", "sliding_window", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "task_specific_params", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version", "use_bfloat16",
    "use_cache", "use_sliding_window",
})  # fmt: skip
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")


@dataclass(frozen=True)
class Field:
    """A key of both configs."""

    theirs: str
    """Hugging Face's key."""
    ours: str | tuple[str, ...]
    """The key, or keys, of contract `model` that have its value; on the way back several must agree."""
    default: Any = REQUIRED
    """What transformers' config class takes when the file lacks the key."""
    when_null: Callable[[TheirConfig], Any] | None = None
    """What null stands for, where it stands for something."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Values that Hugging Face writes otherwise than contract `model`, as (theirs, ours)."""
    is_written_when_none: bool = True
    """False for a key that the way back leaves out when it has no value."""


@dataclass(frozen=True)
class Limit:
    """A Hugging Face key that changes the computation and of which only some values can be converted."""

    key: str
    """Hugging Face's key."""
    allowed: tuple[Any, ...]
    """Values that change nothing; a missing key is allowed."""
    reason: str
    """What another value would mean."""


COMMON_LIMITS = (
    Limit("quantization_config", (None,), "the weights are quantized; dequantize them first"),
    Limit("is_encoder_decoder", (False, None), "an encoder and a decoder; only decoders are converted"),
    Limit("add_cross_attention", (False, None), "attention to an encoder"),
    Limit("pruned_heads", (None, {}), "heads were removed from single layers"),
    Limit("auto_map", (None,), "the model brings code of its own, which may compute something else"),
    Limit("partial_rotary_factor", (None, 1, 1.0), "only a part of each head is rotated"),
    Limit("attn_logit_softcapping", (None,), "attention scores are capped"),
    Limit("final_logit_softcapping", (None,), "logits are capped"),
    Limit("attention_chunk_size", (None,), "attention is limited to chunks"),
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """All that is known about one kind of model: its weights' table and its config's."""

    name: str
    """Hugging Face's `model_type`."""
    architecture: str
    """transformers' class with a language model head."""
    prefix: str
    """What files of the bare model, without a head, leave out of every name."""
    rules: tuple[Rule | Tie | Drop, ...]
    """The weights' table."""
    fields: tuple[Field, ...]
    """The config's table."""
    switches: Mapping[str, Any]
    """Keys of contract `model` that have one value in this family; a function computes it from the config."""
    limits: tuple[Limit, ...] = ()
    """Keys, besides the common ones, of which only some values can be converted."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Hugging Face keys that are written with one value, because their default means something else."""
    window: Callable[[TheirConfig], int | None] = lambda theirs: None
    """Number of positions that attention sees, from the Hugging Face config; None for all."""


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """A Hugging Face config in the terms of contract `model`."""

    config: Config
    """The config of contract `model`."""
    carried: tuple[str, ...]
    """Keys without effect on inference, kept for the way back."""
    unknown: tuple[str, ...]
    """Keys that nothing here knows, kept for the way back."""


def from_huggingface(family: Family, theirs: TheirConfig, generation: TheirConfig | None, what: str) -> Mapped:
    """Reads a Hugging Face config.

    Args:
        family: the family's tables.
        theirs: content of config.json.
        generation: content of generation_config.json; its ids count before those of config.json, as in transformers.
        what: begins error messages.

    Raises:
        ConfigError: a required key is missing, or keys have values that cannot be converted; all of them are named.
    """
    faults = [
        f"{limit.key}: found {theirs[limit.key]!r:.100}: {limit.reason}"
        for limit in (*COMMON_LIMITS, *family.limits)
        if limit.key in theirs and theirs[limit.key] not in limit.allowed
    ]
    faults += _window_faults(family, theirs)
    ours: dict[str, Any] = {"model_type": family.name}
    for line in family.fields:
        value = theirs.get(line.theirs, line.default)
        if value is REQUIRED or (value is None and line.default is REQUIRED):
            faults.append(f"{line.theirs}: missing")
            continue
        if value is None and line.when_null:
            try:
                value = line.when_null(theirs)
            except (KeyError, TypeError):
                continue  # what it is computed from is missing and reported by its own line
        value = dict(line.spellings).get(value, value) if isinstance(value, str) else value
        ours |= dict.fromkeys(_as_tuple(line.ours), value)
    if ours_rope := _read_rope(family, theirs, faults):
        ours |= ours_rope
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ours[key] = _end_ids((generation or {}).get(key), ours.get(key))
    if faults:
        raise ConfigError(f"{what}: cannot be converted: " + "; ".join(faults))
    needed = {key: value for key, value in family.switches.items() if not callable(value)}
    known = {line.theirs for line in family.fields} | set(_ROPE_KEYS)
    known |= {limit.key for limit in (*COMMON_LIMITS, *family.limits)}
    extra = [key for key in theirs if key not in known]
    return Mapped(
        config=read_config(ours | needed, what),
        carried=tuple(key for key in extra if key in _WITHOUT_EFFECT),
        unknown=tuple(key for key in extra if key not in _WITHOUT_EFFECT),
    )


def to_huggingface(family: Family, config: Config, what: str) -> dict[str, Any]:
    """Writes a config of contract `model` as a Hugging Face config of a family.

    Rotary settings are written as `rope_theta` and `rope_scaling`, which transformers 4 and 5 both read.

    Raises:
        ConfigError: the family cannot say what the config says; every such key is named.
    """
    faults = []
    for key, switch in family.switches.items():
        expected = switch(config) if callable(switch) else switch
        if config[key] != expected:
            faults.append(f"{key}: found {config[key]!r}, {family.name} has {expected!r}")
    theirs: dict[str, Any] = {"architectures": [family.architecture], "model_type": family.name, **family.fixed}
    for line in family.fields:
        names = _as_tuple(line.ours)
        if any(config[name] != config[names[0]] for name in names):
            found = ", ".join(f"{name} {config[name]!r}" for name in names)
            faults.append(f"{found}: {family.name} has one key for both ({line.theirs})")
        value = config[names[0]]
        if value is None and not line.is_written_when_none:
            continue
        back = {ours: spelled for spelled, ours in reversed(line.spellings)}
        theirs[line.theirs] = back.get(value, value) if isinstance(value, str) else value
    if config["position_kind"] == "rotary":
        theirs["rope_theta"] = config["rope_theta"]
        theirs["rope_scaling"] = dict(config["rope_scaling"]) if config["rope_scaling"] else None
    if faults:
        raise ConfigError(f"{what}: cannot be written as family {family.name}: " + "; ".join(faults))
    return theirs


def live_config(config: Config) -> Config:
    """The keys that a network or a generation depends on: without the family's name and the settings not in use."""
    dead = {"model_type", "initializer_range"}
    dead |= {"layer_norm_eps", "norm_bias"} if config["norm_kind"] == "rms_norm" else {"rms_norm_eps"}
    dead |= {"rope_theta", "rope_scaling"} if config["position_kind"] == "learned" else set()
    return {key: value for key, value in config.items() if key not in dead}


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _end_ids(first: Any, second: Any) -> Any:
    ids = second if first is None else first
    if isinstance(ids, list) and all(isinstance(each, int) for each in ids):
        unique = list(dict.fromkeys(ids))
        return None if not unique else unique[0] if len(unique) == 1 else unique
    return None if ids == -1 else ids  # old Llama configs write pad_token_id -1 for none


def _window_faults(family: Family, theirs: TheirConfig) -> list[str]:
    faults = []
    kinds = theirs.get("layer_types")
    window = family.window(theirs)
    length = theirs.get("max_position_embeddings")
    if window is not None and not (isinstance(window, int) and isinstance(length, int) and window >= length):
        faults.append(
            f"sliding_window: found {window!r} with max_position_embeddings {length!r}: attention is limited to a "
            "window; set it to null, or max_position_embeddings to at most the window, if that is meant"
        )
    elif (
        window is None
        and kinds is not None
        and (not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds))
    ):
        faults.append(f"layer_types: found {kinds!r:.200}: only full_attention can be converted")
    return faults


def _read_rope(family: Family, theirs: TheirConfig, faults: list[str]) -> dict[str, Any]:
    if family.switches.get("position_kind") != "rotary":
        return {}
    scaling: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = theirs.get(key)
        if not isinstance(part, Mapping | None):
            faults.append(f"{key}: found {part!r:.100}, expected an object or null")
            return {}
        scaling |= part or {}
    if any(isinstance(value, Mapping) for value in scaling.values()):
        faults.append("rope_parameters: differ between layers")
        return {}
    theta = scaling.pop("rope_theta", theirs.get("rope_theta", 10000.0))
    old_kind = scaling.pop("type", None)
    kind = scaling.pop("rope_type", old_kind) or "default"
    if scaling.pop("partial_rotary_factor", 1.0) != 1.0:
        faults.append("rope_parameters.partial_rotary_factor: only a part of each head is rotated")
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    keys = {
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }.get(str(kind))
    if keys is None:
        faults.append(f"rope_scaling: found type {kind!r}; linear and llama3 can be converted")
        return {}
    if kind == "llama3":
        scaling.setdefault("original_max_position_embeddings", theirs.get("max_position_embeddings"))
    else:
        scaling.pop("original_max_position_embeddings", None)  # linear scaling does not use it
    if missing := [key for key in keys if scaling.get(key) is None]:
        faults.append(f"rope_scaling: {kind} needs {', '.join(missing)}")
    if strange := sorted(set(scaling) - set(keys)):
        faults.append(f"rope_scaling: {kind} with {', '.join(strange)}, whose meaning is not known")
    return {"rope_theta": theta, "rope_scaling": {"rope_type": kind, **{key: scaling.get(key) for key in keys}}}
