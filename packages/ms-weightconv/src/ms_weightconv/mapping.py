"""Config mapping: how a Hugging Face config.json becomes a config of contract `model`, and back from the same lines.

A key that changes the computation in a way that contract `model` cannot say is refused by name. Keys without effect
on inference are kept (see `sidecar`), unknown ones are kept and reported. What is written is read back: a family that
cannot say what a config says is found out by the difference.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ms_weightconv.contract import Config, read_config
from ms_weightconv.errors import ConfigError
from ms_weightconv.family import Derived, Family, Field, Limit, TheirConfig

# Keys that name things, steer training or describe files: no influence on the logits of a forward pass.
_WITHOUT_EFFECT = frozenset({
    "_attn_implementation", "_name_or_path", "_sliding_window_pattern", "architectures", "attention_dropout",
    "attention_probs_dropout_prob", "attn_pdrop", "cache_implementation", "chunk_size_feed_forward",
    "classifier_dropout", "directionality", "dropout", "dtype", "embd_pdrop", "finetuning_task",
    "gradient_checkpointing", "hidden_activation", "hidden_dropout", "hidden_dropout_prob", "id2label", "is_decoder",
    "label2id", "layer_norm_elementwise_affine", "layer_types", "layerdrop", "max_window_layers", "model_type",
    "n_ctx", "n_inner", "name_or_path", "offset_alibi", "original_max_position_embeddings", "output_attentions",
    "output_hidden_states", "output_router_logits", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "prefix", "pretraining_tp", "problem_type",
    "reorder_and_upcast_attn", "resid_pdrop", "return_dict", "return_dict_in_generate", "router_jitter_noise",
    "sep_token_id", "skip_bias_add", "skip_bias_add_qkv", "sliding_window", "slow_but_exact", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers.js_config", "transformers_version", "unk_token_id",
    "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache", "use_sliding_window", "word_embed_proj_dim",
})  # fmt: skip

COMMON_LIMITS = (
    Limit("quantization_config", (None,), "the weights are quantized; dequantize them first"),
    Limit("is_encoder_decoder", (False, None), "an encoder and a decoder; only one of them alone is converted"),
    Limit("add_cross_attention", (False, None), "attention to an encoder"),
    Limit("pruned_heads", (None, {}), "heads were removed from single layers"),
    Limit("auto_map", (None,), "the model brings code of its own, which may compute something else"),
    Limit("partial_rotary_factor", (None, 1, 1.0), "only a part of each head is rotated"),
    Limit("attn_logit_softcapping", (None,), "attention scores are capped"),
    Limit("final_logit_softcapping", (None,), "logits are capped"),
    Limit("attention_chunk_size", (None,), "attention is limited to chunks"),
    Limit("use_bidirectional_attention", (None, False), "attention also sees what follows"),
    Limit("position_embedding_type", (None, "absolute"), "positions are relative, with tables of their own"),
)
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Not part of a forward pass outside training: families may differ in what they can say of it.
_TRAINING_ONLY = frozenset({
    "model_type", "initializer_range", "router_aux_loss_coef", "router_z_loss_coef", "embedding_dropout",
    "residual_dropout", "attention_dropout", "dropout_seed",
})  # fmt: skip


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
    known = {key for line in family.fields for key in line.their_keys}
    limits = [*(limit for limit in COMMON_LIMITS if limit.key not in known), *family.limits]
    faults = [
        f"{limit.key}: found {theirs[limit.key]!r:.100}: {limit.reason}"
        for limit in limits
        if limit.key in theirs and theirs[limit.key] not in limit.allowed and limit.key not in family.lifted
    ]
    ours: dict[str, Any] = {"model_type": family.name}
    for line in family.fields:
        try:
            ours |= line.read(theirs)
        except KeyError as error:
            faults.append(f"{error.args[0]}: missing")
        except ConfigError as error:
            faults.append(str(error))
        except (TypeError, ValueError, ArithmeticError):
            faults.append(f"{', '.join(line.their_keys)}: impossible values")
    for key in _TOKEN_IDS:
        ours[key] = _end_ids((generation or {}).get(key), ours.get(key))
    if faults:
        raise ConfigError(f"{what}: cannot be converted: " + "; ".join(dict.fromkeys(faults)))
    known |= {limit.key for limit in limits}
    extra = [key for key in theirs if key not in known]
    return Mapped(
        config=_complete(family, ours, what),
        carried=tuple(key for key in extra if key in _WITHOUT_EFFECT),
        unknown=tuple(key for key in extra if key not in _WITHOUT_EFFECT),
    )


def to_huggingface(family: Family, config: Config, what: str) -> dict[str, Any]:
    """Writes a config of contract `model` as a Hugging Face config of a family.

    Rotary settings are written as `rope_theta` and `rope_scaling`, which transformers 4 and 5 both read.

    Raises:
        ConfigError: the family cannot say what the config says; every such key is named.
    """
    theirs: dict[str, Any] = {"architectures": [family.architecture], "model_type": family.name, **family.fixed}
    for line in family.fields:
        theirs |= line.write(config)
    try:
        meant = live_config(from_huggingface(family, theirs, None, what).config)
    except ConfigError as error:
        raise ConfigError(f"{what}: cannot be written as family {family.name}: {error}") from error
    wanted = live_config(config)
    differing = [key for key in dict.fromkeys([*wanted, *meant]) if wanted.get(key) != meant.get(key)]
    if differing:
        faults = [f"{key}: found {config[key]!r:.100}, {family.name} has {meant.get(key)!r:.100}" for key in differing]
        raise ConfigError(f"{what}: cannot be written as family {family.name}: " + "; ".join(faults))
    return theirs


def live_config(config: Config) -> Config:
    """The keys that a network or a generation depends on: without the family's name and the settings not in use."""
    dead = set(_TRAINING_ONLY)
    is_rms = config["norm_kind"] == "rms_norm"
    dead |= {"layer_norm_eps", "norm_bias"} if is_rms else set()
    dead |= set() if is_rms or config["qk_norm"] else {"rms_norm_eps"}
    dead |= {"rope_theta", "rope_scaling"} if config["position_kind"] != "rotary" else set()
    dead |= set() if config["num_experts"] else {"num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size"}
    return {key: value for key, value in config.items() if key not in dead}


def changed_keys(line: Field | Derived, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two configs of contract `model` differ in a key of one line of a family's config table."""
    return any(first.get(key) != second.get(key) for key in line.our_keys)


def _complete(family: Family, ours: dict[str, Any], what: str) -> Config:
    """Adds the constants; those that are computed see the others and the defaults."""
    for key, value in family.constants.items():
        if not callable(value):
            ours[key] = value
    # What one is computed from may be impossible, which read_config says by name.
    with suppress(KeyError, TypeError, ValueError, ArithmeticError):
        ours |= {key: value(ours) for key, value in family.constants.items() if callable(value)}
    return read_config(ours, what)


def _end_ids(first: Any, second: Any) -> Any:
    ids = second if first is None else first
    if isinstance(ids, list) and all(isinstance(each, int) for each in ids):
        unique = list(dict.fromkeys(ids))
        return None if not unique else unique[0] if len(unique) == 1 else unique
    return None if ids == -1 else ids  # old Llama configs write pad_token_id -1 for none
