"""Llama 1 to 3, and Mistral, Qwen2 and Qwen3, which share its names."""

from ms_weightconv.families.lines import (
    ACTIVATIONS,
    BLOCK,
    COMMON_FIELDS,
    SIZE_FIELDS,
    dropout,
    heads,
    linear,
    token_ids,
)
from ms_weightconv.family import Derived, Family, Field
from ms_weightconv.rope import rotary_keys
from ms_weightconv.rules import Drop, Duplicate, Rule, Tie
from ms_weightconv.windows import mixed_windows, one_window

LAYER = "model.layers.{layer}"
_NO_BIAS = {"attention_bias": False, "attention_output_bias": False, "mlp_bias": False}

FIELDS = (
    *COMMON_FIELDS,
    *dropout(),
    *SIZE_FIELDS,
    Field("rms_norm_eps", "rms_norm_eps", 1e-6),
    Field("hidden_act", "hidden_act", "silu", spellings=ACTIVATIONS),
    Field("tie_word_embeddings", "tie_word_embeddings", False),
)
ATTENTION = (
    *linear(f"{LAYER}.self_attn.q_proj", f"{BLOCK}.attention.query", bias="attention_bias"),
    *linear(f"{LAYER}.self_attn.k_proj", f"{BLOCK}.attention.key", bias="attention_bias"),
    *linear(f"{LAYER}.self_attn.v_proj", f"{BLOCK}.attention.value", bias="attention_bias"),
    *linear(f"{LAYER}.self_attn.o_proj", f"{BLOCK}.attention.output", bias="attention_output_bias"),
    Rule(f"{LAYER}.self_attn.q_norm.weight", f"{BLOCK}.attention.query_norm.weight", when="qk_norm"),
    Rule(f"{LAYER}.self_attn.k_norm.weight", f"{BLOCK}.attention.key_norm.weight", when="qk_norm"),
)
NORMS = (
    Rule(f"{LAYER}.input_layernorm.weight", f"{BLOCK}.attention_norm.weight"),
    Rule(f"{LAYER}.post_attention_layernorm.weight", f"{BLOCK}.mlp_norm.weight"),
)
DENSE_MLP = tuple(
    rule
    for part in ("gate", "up", "down")
    for rule in (
        Rule(f"{LAYER}.mlp.{part}_proj.weight", f"{BLOCK}.mlp.{part}.weight", when="not experts"),
        Rule(f"{LAYER}.mlp.{part}_proj.bias", f"{BLOCK}.mlp.{part}.bias", when="not experts and mlp_bias"),
    )
)


def table(*layer: Rule) -> tuple[Rule | Tie | Drop | Duplicate, ...]:
    """Llama's names around the rules of one layer."""
    return (
        Rule("model.embed_tokens.weight", "embedding.weight"),
        *layer,
        Rule("model.norm.weight", "norm.weight"),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
        Drop(f"{LAYER}.self_attn.rotary_emb.inv_freq", "computed from rope_theta"),
    )


def qwen_windows() -> Derived:
    """Layers from `max_window_layers` on slide, where `use_sliding_window` says so."""
    return mixed_windows(
        lambda theirs, layer: layer >= theirs.get("max_window_layers", 28),
        "max_window_layers",
        switch="use_sliding_window",
    )


LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *NORMS, *DENSE_MLP),
    fields=(
        *FIELDS,
        *token_ids(1, 2),
        rotary_keys(),
        Field("num_key_value_heads", "num_key_value_heads", None, when_null=heads),
        Field("head_dim", "head_dim", None),
        Field("attention_bias", ("attention_bias", "attention_output_bias"), False),
        Field("mlp_bias", "mlp_bias", False),
    ),
    constants={},
)

MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *NORMS, *DENSE_MLP),
    fields=(
        *FIELDS,
        *token_ids(1, 2),
        rotary_keys(),
        one_window(4096),
        Field("num_key_value_heads", "num_key_value_heads", 8, when_null=heads),
        Field("head_dim", "head_dim", None),
    ),
    constants=_NO_BIAS,
)

QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *NORMS, *DENSE_MLP),
    fields=(
        *FIELDS,
        *token_ids(None, None),
        rotary_keys(),
        qwen_windows(),
        Field("num_key_value_heads", "num_key_value_heads", 32, when_null=heads),
        Field("head_dim", "head_dim", None),
    ),
    constants={**_NO_BIAS, "attention_bias": True},
)

QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *NORMS, *DENSE_MLP),
    fields=(
        *FIELDS,
        *token_ids(None, None),
        rotary_keys(),
        qwen_windows(),
        Field("num_key_value_heads", "num_key_value_heads", 32, when_null=heads),
        Field("head_dim", "head_dim", 128),
        Field("attention_bias", ("attention_bias", "attention_output_bias"), False),
    ),
    constants={"mlp_bias": False, "qk_norm": True},
)
