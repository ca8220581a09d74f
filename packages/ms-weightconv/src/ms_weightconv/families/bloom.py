"""BLOOM: positions by ALiBi, query, key and value side by side per head, a norm behind the embedding."""

from ms_weightconv.families.lines import (
    ALL_BIASES,
    BLOCK,
    COMMON_FIELDS,
    LAYER_NORMS,
    QUERY_KEY_VALUE,
    dropout,
    linear,
    token_ids,
)
from ms_weightconv.family import Family, Field, Limit
from ms_weightconv.rules import Rule, Tie
from ms_weightconv.steps import Ungroup

_LAYER = "transformer.h.{layer}"

BLOOM = Family(
    name="bloom",
    architecture="BloomForCausalLM",
    prefix="transformer.",
    rules=(
        Rule("transformer.word_embeddings.weight", "embedding.weight"),
        *linear("transformer.word_embeddings_layernorm", "embedding_norm", bias=""),
        *linear(f"{_LAYER}.input_layernorm", f"{BLOCK}.attention_norm", bias=""),
        *(
            Rule(
                f"{_LAYER}.self_attention.query_key_value.{kind}",
                tuple(f"{BLOCK}.attention.{part}.{kind}" for part in QUERY_KEY_VALUE),
                (Ungroup(),),
            )
            for kind in ("weight", "bias")
        ),
        *linear(f"{_LAYER}.self_attention.dense", f"{BLOCK}.attention.output", bias=""),
        *linear(f"{_LAYER}.post_attention_layernorm", f"{BLOCK}.mlp_norm", bias=""),
        *linear(f"{_LAYER}.mlp.dense_h_to_4h", f"{BLOCK}.mlp.up", bias=""),
        *linear(f"{_LAYER}.mlp.dense_4h_to_h", f"{BLOCK}.mlp.down", bias=""),
        *linear("transformer.ln_f", "norm", bias=""),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
    ),
    fields=(
        *COMMON_FIELDS,
        *dropout(residual="hidden_dropout"),
        *token_ids(1, 2),
        Field("hidden_size", "hidden_size", aliases=("n_embed",)),
        Field("n_layer", "num_hidden_layers", aliases=("num_hidden_layers",)),
        Field("n_head", "num_attention_heads", aliases=("num_attention_heads",)),
        Field("seq_length", "max_position_embeddings", 2048),  # no limit of the model: ALiBi has none
        Field("layer_norm_epsilon", "layer_norm_eps", 1e-5),
        Field("tie_word_embeddings", "tie_word_embeddings", True),
    ),
    constants={
        **LAYER_NORMS,
        **ALL_BIASES,
        "hidden_act": "gelu_new",
        "position_kind": "alibi",
        "embedding_norm": True,
        "intermediate_size": lambda ours: 4 * ours["hidden_size"],
    },
    limits=(
        Limit("apply_residual_connection_post_layernorm", (False,), "the residual is taken behind the norm"),
        Limit("n_inner", (None,), "transformers ignores it, so the file cannot hold such a model"),
    ),
)
