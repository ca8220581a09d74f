"""GPT-NeoX and Pythia: query, key and value side by side per head, attention and mlp in parallel."""

from ms_weightconv.families.lines import (
    ACTIVATIONS,
    BLOCK,
    COMMON_FIELDS,
    LAYER_NORMS,
    QUERY_KEY_VALUE,
    SIZE_FIELDS,
    dropout,
    linear,
    token_ids,
)
from ms_weightconv.family import Family, Field
from ms_weightconv.rope import rotary_keys
from ms_weightconv.rules import Drop, Rule, Tie
from ms_weightconv.steps import Ungroup

_LAYER = "gpt_neox.layers.{layer}"

GPT_NEOX = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    rules=(
        Rule("gpt_neox.embed_in.weight", "embedding.weight"),
        *linear(f"{_LAYER}.input_layernorm", f"{BLOCK}.attention_norm", bias=""),
        Rule(
            f"{_LAYER}.attention.query_key_value.weight",
            tuple(f"{BLOCK}.attention.{part}.weight" for part in QUERY_KEY_VALUE),
            (Ungroup(),),
        ),
        Rule(
            f"{_LAYER}.attention.query_key_value.bias",
            tuple(f"{BLOCK}.attention.{part}.bias" for part in QUERY_KEY_VALUE),
            (Ungroup(),),
            when="attention_bias",
        ),
        *linear(f"{_LAYER}.attention.dense", f"{BLOCK}.attention.output", bias="attention_output_bias"),
        *linear(f"{_LAYER}.post_attention_layernorm", f"{BLOCK}.mlp_norm", bias=""),
        *linear(f"{_LAYER}.mlp.dense_h_to_4h", f"{BLOCK}.mlp.up", bias=""),
        *linear(f"{_LAYER}.mlp.dense_4h_to_h", f"{BLOCK}.mlp.down", bias=""),
        *linear("gpt_neox.final_layer_norm", "norm", bias=""),
        Tie("embed_out.weight", "lm_head.weight", to="embedding.weight"),
        Drop(f"{_LAYER}.attention.bias", "a causal mask, not a weight"),
        Drop(f"{_LAYER}.attention.masked_bias", "a constant of the causal mask"),
        Drop(f"{_LAYER}.attention.rotary_emb.inv_freq", "computed from the rotary base"),
    ),
    fields=(
        *COMMON_FIELDS,
        *dropout(residual="hidden_dropout", embedding="hidden_dropout"),
        *SIZE_FIELDS,
        *token_ids(0, 2),
        Field("layer_norm_eps", "layer_norm_eps", 1e-5),
        Field("hidden_act", "hidden_act", "gelu", spellings=ACTIVATIONS),
        Field("use_parallel_residual", "parallel_residual", True),
        Field("attention_bias", ("attention_bias", "attention_output_bias"), True),
        Field("tie_word_embeddings", "tie_word_embeddings", False),
        rotary_keys(theta_key="rotary_emb_base", partial=0.25, partial_key="rotary_pct"),
    ),
    constants={**LAYER_NORMS, "mlp_bias": True},
)
