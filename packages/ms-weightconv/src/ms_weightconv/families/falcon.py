"""Falcon: 7B (one key/value head, one norm), the newer architecture (grouped heads, two norms), and the old ones."""

from typing import Any

from ms_weightconv.contract import Config
from ms_weightconv.errors import ConfigError
from ms_weightconv.families.lines import (
    ACTIVATIONS,
    BLOCK,
    COMMON_FIELDS,
    LAYER_NORMS,
    QUERY_KEY_VALUE,
    dropout,
    token_ids,
)
from ms_weightconv.family import Derived, Family, Field, Limit, TheirConfig
from ms_weightconv.rope import rotary_keys
from ms_weightconv.rules import Drop, Rule, Tie
from ms_weightconv.steps import Ungroup

_LAYER = "transformer.h.{layer}"
_TWO_NORMS = "parallel_residual and not parallel_norm_is_shared"


def _read_layout(theirs: TheirConfig) -> Config:
    is_new, is_parallel = bool(theirs.get("new_decoder_architecture", False)), bool(theirs.get("parallel_attn", True))
    is_multi_query = bool(theirs.get("multi_query", True))
    heads = theirs["num_attention_heads"] if "num_attention_heads" in theirs else theirs["n_head"]
    groups = theirs.get("num_kv_heads") or heads
    num_norms = theirs.get("num_ln_in_parallel_attn") or (2 if is_new else 1)
    if is_new and not is_parallel:
        raise ConfigError("parallel_attn: found false with new_decoder_architecture, which transformers cannot run")
    if num_norms not in (1, 2) or (num_norms == 2 and not is_new):
        raise ConfigError(f"num_ln_in_parallel_attn: found {num_norms!r:.100}, which transformers cannot run")
    if not is_new and not is_multi_query and groups != heads:
        raise ConfigError(f"num_kv_heads: found {groups!r:.100} without multi_query or new_decoder_architecture")
    return {
        "num_key_value_heads": 1 if is_multi_query and not is_new else groups,
        "parallel_residual": is_parallel,
        "parallel_norm_is_shared": is_parallel and num_norms == 1,
    }


def _write_layout(config: Config) -> dict[str, Any]:
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    is_parallel, is_shared = config["parallel_residual"], config["parallel_norm_is_shared"]
    is_old = groups in (1, heads) and is_shared == is_parallel
    return {
        "new_decoder_architecture": not is_old,
        "multi_query": is_old and groups == 1,
        "parallel_attn": is_parallel,
        "num_kv_heads": groups,
        "num_ln_in_parallel_attn": None if is_old else 1 if is_shared else 2,
    }


def _norm(theirs: str, ours: str, when: str | None) -> tuple[Rule, ...]:
    return tuple(Rule(f"{_LAYER}.{theirs}.{kind}", f"{BLOCK}.{ours}.{kind}", when=when) for kind in ("weight", "bias"))


def _linear(theirs: str, ours: str, when: str) -> tuple[Rule, ...]:
    return (
        Rule(f"{_LAYER}.{theirs}.weight", f"{BLOCK}.{ours}.weight"),
        Rule(f"{_LAYER}.{theirs}.bias", f"{BLOCK}.{ours}.bias", when=when),
    )


FALCON = Family(
    name="falcon",
    architecture="FalconForCausalLM",
    prefix="transformer.",
    rules=(
        Rule("transformer.word_embeddings.weight", "embedding.weight"),
        *_norm("ln_attn", "attention_norm", _TWO_NORMS),
        *_norm("ln_mlp", "mlp_norm", _TWO_NORMS),
        *_norm("input_layernorm", "attention_norm", "parallel_norm_is_shared"),
        *_norm("input_layernorm", "attention_norm", "not parallel_residual"),
        *_norm("post_attention_layernorm", "mlp_norm", "not parallel_residual"),
        *(
            Rule(
                f"{_LAYER}.self_attention.query_key_value.{kind}",
                tuple(f"{BLOCK}.attention.{part}.{kind}" for part in QUERY_KEY_VALUE),
                (Ungroup(),),
                when=when,
            )
            for kind, when in (("weight", None), ("bias", "attention_bias"))
        ),
        *_linear("self_attention.dense", "attention.output", "attention_output_bias"),
        *_linear("mlp.dense_h_to_4h", "mlp.up", "mlp_bias"),
        *_linear("mlp.dense_4h_to_h", "mlp.down", "mlp_bias"),
        Rule("transformer.ln_f.weight", "norm.weight"),
        Rule("transformer.ln_f.bias", "norm.bias"),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
        Drop(f"{_LAYER}.self_attention.rotary_emb.inv_freq", "computed from rope_theta"),
    ),
    fields=(
        *COMMON_FIELDS,
        *dropout(residual="hidden_dropout"),
        *token_ids(11, 11),
        Field("hidden_size", "hidden_size", aliases=("n_embed",)),
        Field("num_hidden_layers", "num_hidden_layers", aliases=("n_layer",)),
        Field("num_attention_heads", "num_attention_heads", aliases=("n_head",)),
        Field(
            "ffn_hidden_size",
            "intermediate_size",
            None,
            when_null=lambda theirs: 4 * (theirs["hidden_size"] if "hidden_size" in theirs else theirs["n_embed"]),
        ),
        Field("max_position_embeddings", "max_position_embeddings", 2048),
        Field("layer_norm_epsilon", "layer_norm_eps", 1e-5),
        Field("activation", "hidden_act", "gelu", spellings=ACTIVATIONS),
        Field("bias", ("attention_bias", "attention_output_bias", "mlp_bias"), False),
        Field("tie_word_embeddings", "tie_word_embeddings", True),
        Derived(
            ("new_decoder_architecture", "multi_query", "parallel_attn", "num_kv_heads", "num_ln_in_parallel_attn"),
            ("num_key_value_heads", "parallel_residual", "parallel_norm_is_shared"),
            _read_layout,
            _write_layout,
        ),
        rotary_keys(),
    ),
    constants=LAYER_NORMS,
    limits=(
        Limit("alibi", (False,), "positions by an ALiBi bias that is divided by the root of head_dim (Falcon-RW)"),
    ),
)
