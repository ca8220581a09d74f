"""GPT-2: fused projections stored `[in, out]`, learned positions."""

from ms_weightconv.families.lines import (
    ACTIVATIONS,
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
from ms_weightconv.rules import Drop, Rule, Tie
from ms_weightconv.steps import Split, Transpose

_LAYER = "transformer.h.{layer}"


def _conv1d(theirs: str, ours: str) -> tuple[Rule, ...]:
    """transformers' Conv1D stores its weight as `[in, out]`."""
    return Rule(f"{theirs}.weight", f"{ours}.weight", (Transpose(),)), Rule(f"{theirs}.bias", f"{ours}.bias")


GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    rules=(
        Rule("transformer.wte.weight", "embedding.weight"),
        Rule("transformer.wpe.weight", "position_embedding.weight"),
        *linear(f"{_LAYER}.ln_1", f"{BLOCK}.attention_norm", bias=""),
        Rule(
            f"{_LAYER}.attn.c_attn.weight",
            tuple(f"{BLOCK}.attention.{part}.weight" for part in QUERY_KEY_VALUE),
            (Transpose(), Split(*QUERY_KEY_VALUE)),
        ),
        Rule(
            f"{_LAYER}.attn.c_attn.bias",
            tuple(f"{BLOCK}.attention.{part}.bias" for part in QUERY_KEY_VALUE),
            (Split(*QUERY_KEY_VALUE),),
        ),
        *_conv1d(f"{_LAYER}.attn.c_proj", f"{BLOCK}.attention.output"),
        *linear(f"{_LAYER}.ln_2", f"{BLOCK}.mlp_norm", bias=""),
        *_conv1d(f"{_LAYER}.mlp.c_fc", f"{BLOCK}.mlp.up"),
        *_conv1d(f"{_LAYER}.mlp.c_proj", f"{BLOCK}.mlp.down"),
        *linear("transformer.ln_f", "norm", bias=""),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
        Drop(f"{_LAYER}.attn.bias", "a causal mask, not a weight"),
        Drop(f"{_LAYER}.attn.masked_bias", "a constant of the causal mask"),
    ),
    fields=(
        *COMMON_FIELDS,
        *dropout("attn_pdrop", residual="resid_pdrop", embedding="embd_pdrop"),
        *token_ids(50256, 50256),
        Field("n_embd", "hidden_size", aliases=("hidden_size",)),
        Field("n_layer", "num_hidden_layers", aliases=("num_hidden_layers",)),
        Field("n_head", "num_attention_heads", aliases=("num_attention_heads",)),
        Field("n_positions", "max_position_embeddings", aliases=("max_position_embeddings",)),
        Field("n_inner", "intermediate_size", None, when_null=lambda theirs: 4 * theirs["n_embd"]),
        Field("layer_norm_epsilon", "layer_norm_eps", 1e-5),
        Field("activation_function", "hidden_act", "gelu_new", spellings=ACTIVATIONS),
        Field("tie_word_embeddings", "tie_word_embeddings", True),
    ),
    constants={**LAYER_NORMS, **ALL_BIASES, "position_kind": "learned"},
    limits=(
        Limit("scale_attn_weights", (True,), "attention scores are not divided by the root of head_dim"),
        Limit("scale_attn_by_inverse_layer_idx", (False,), "attention scores are divided by the layer's number"),
    ),
)
