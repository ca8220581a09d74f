"""Gemma 1 to 3: norms that multiply by 1 + weight, a scaled embedding; 2 and 3 have norms behind each branch too."""

import math
from typing import Any

from ms_weightconv.families.lines import ACTIVATIONS, BLOCK, COMMON_FIELDS, SIZE_FIELDS, dropout, token_ids
from ms_weightconv.families.llama import ATTENTION, DENSE_MLP, LAYER, NORMS, table
from ms_weightconv.family import Family, Field, Limit
from ms_weightconv.rope import rotary_keys
from ms_weightconv.rules import Rule
from ms_weightconv.windows import mixed_windows

_CONSTANTS: dict[str, Any] = {
    "rms_norm_adds_one": True,
    "embedding_multiplier": lambda ours: math.sqrt(ours["hidden_size"]),
}
_FIELDS = (
    *COMMON_FIELDS,
    *dropout(),
    *SIZE_FIELDS,
    *token_ids(2, 1, 0),
    Field("head_dim", "head_dim", 256),
    Field("rms_norm_eps", "rms_norm_eps", 1e-6),
    Field("attention_bias", ("attention_bias", "attention_output_bias"), False),
    Field("tie_word_embeddings", "tie_word_embeddings", True),
)
_TANH_ONLY = (
    ("gelu_pytorch_tanh", "gelu_new"),
    ("gelu", "gelu_new"),
    ("gelu_new", "gelu_new"),
)  # "gelu" is an old slip
_SANDWICH = (
    Rule(f"{LAYER}.input_layernorm.weight", f"{BLOCK}.attention_norm.weight"),
    Rule(f"{LAYER}.post_attention_layernorm.weight", f"{BLOCK}.attention_post_norm.weight"),
    Rule(f"{LAYER}.pre_feedforward_layernorm.weight", f"{BLOCK}.mlp_norm.weight"),
    Rule(f"{LAYER}.post_feedforward_layernorm.weight", f"{BLOCK}.mlp_post_norm.weight"),
)
_NEWER_FIELDS = (
    *_FIELDS,
    Field("num_key_value_heads", "num_key_value_heads", 4),
    Field("hidden_activation", "hidden_act", "gelu_pytorch_tanh", spellings=(*_TANH_ONLY[:1], *ACTIVATIONS)),
    Field("query_pre_attn_scalar", "query_pre_attn_scalar", 256),
)

GEMMA = Family(
    name="gemma",
    architecture="GemmaForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *NORMS, *DENSE_MLP),
    fields=(
        *_FIELDS,
        Field("num_key_value_heads", "num_key_value_heads", 16),
        Field("hidden_act", "hidden_act", "gelu_pytorch_tanh", spellings=_TANH_ONLY),
        rotary_keys(),
    ),
    constants=_CONSTANTS,
    limits=(Limit("hidden_activation", (None, "gelu_pytorch_tanh"), "another activation than Gemma's"),),
)

GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *_SANDWICH, *DENSE_MLP),
    fields=(
        *_NEWER_FIELDS,
        Field("attn_logit_softcapping", "attn_logit_softcapping", 50.0),
        Field("final_logit_softcapping", "final_logit_softcapping", 30.0),
        rotary_keys(),
        mixed_windows(lambda theirs, layer: layer % 2 == 0),
    ),
    constants=_CONSTANTS | {"norm_placement": "sandwich"},
)

GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    prefix="model.",
    rules=table(*ATTENTION, *_SANDWICH, *DENSE_MLP),
    fields=(
        *_NEWER_FIELDS,
        Field("attn_logit_softcapping", "attn_logit_softcapping", None),
        Field("final_logit_softcapping", "final_logit_softcapping", None),
        rotary_keys(theta=1e6, local_theta=1e4),
        mixed_windows(
            lambda theirs, layer: (layer + 1) % theirs.get("sliding_window_pattern", 6) != 0, "sliding_window_pattern"
        ),
    ),
    constants=_CONSTANTS | {"norm_placement": "sandwich", "qk_norm": True},
)
