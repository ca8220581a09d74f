"""OPT: learned positions with an offset of 2; the 350m model has its norms behind the sums and a narrow embedding."""

from typing import Any

from ms_weightconv.contract import Config
from ms_weightconv.families.lines import ACTIVATIONS, BLOCK, COMMON_FIELDS, LAYER_NORMS, dropout, linear, token_ids
from ms_weightconv.family import Derived, Family, Field, Limit, TheirConfig
from ms_weightconv.rules import Rule, Tie

_DECODER = "model.decoder"
_LAYER = f"{_DECODER}.layers.{{layer}}"


def _read_norms(theirs: TheirConfig) -> Config:
    before, removed = theirs.get("do_layer_norm_before", True), theirs.get("_remove_final_layer_norm", False)
    return {"norm_placement": "pre" if before else "post", "final_norm": bool(before and not removed)}


def _write_norms(config: Config) -> dict[str, Any]:
    before = config["norm_placement"] == "pre"
    return {"do_layer_norm_before": before, "_remove_final_layer_norm": before and not config["final_norm"]}


OPT = Family(
    name="opt",
    architecture="OPTForCausalLM",
    prefix="model.",
    rules=(
        Rule(f"{_DECODER}.embed_tokens.weight", "embedding.weight"),
        Rule(f"{_DECODER}.embed_positions.weight", "position_embedding.weight"),
        Rule(f"{_DECODER}.project_in.weight", "embedding_projection.weight", when="embedding_projection"),
        Rule(f"{_DECODER}.project_out.weight", "head_projection.weight", when="embedding_projection"),
        *linear(f"{_LAYER}.self_attn_layer_norm", f"{BLOCK}.attention_norm", bias=""),
        *linear(f"{_LAYER}.self_attn.q_proj", f"{BLOCK}.attention.query", bias="attention_bias"),
        *linear(f"{_LAYER}.self_attn.k_proj", f"{BLOCK}.attention.key", bias="attention_bias"),
        *linear(f"{_LAYER}.self_attn.v_proj", f"{BLOCK}.attention.value", bias="attention_bias"),
        *linear(f"{_LAYER}.self_attn.out_proj", f"{BLOCK}.attention.output", bias="attention_output_bias"),
        *linear(f"{_LAYER}.final_layer_norm", f"{BLOCK}.mlp_norm", bias=""),
        *linear(f"{_LAYER}.fc1", f"{BLOCK}.mlp.up", bias="mlp_bias"),
        *linear(f"{_LAYER}.fc2", f"{BLOCK}.mlp.down", bias="mlp_bias"),
        Rule(f"{_DECODER}.final_layer_norm.weight", "norm.weight", when="final_norm"),
        Rule(f"{_DECODER}.final_layer_norm.bias", "norm.bias", when="final_norm"),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
    ),
    fields=(
        COMMON_FIELDS[0],
        COMMON_FIELDS[2],
        *dropout(residual="dropout"),
        *token_ids(2, 2, 1),
        Field("init_std", "initializer_range", 0.02),
        Field("hidden_size", "hidden_size"),
        Field("num_hidden_layers", "num_hidden_layers"),
        Field("num_attention_heads", "num_attention_heads"),
        Field("ffn_dim", "intermediate_size"),
        Field("max_position_embeddings", "max_position_embeddings", 2048),
        Field("word_embed_proj_dim", "embedding_size", None),
        Field("activation_function", "hidden_act", "relu", spellings=ACTIVATIONS),
        Field("enable_bias", ("attention_bias", "attention_output_bias", "mlp_bias"), True),
        Field("tie_word_embeddings", "tie_word_embeddings", True),
        Derived(
            ("do_layer_norm_before", "_remove_final_layer_norm"),
            ("norm_placement", "final_norm"),
            _read_norms,
            _write_norms,
        ),
    ),
    constants={**LAYER_NORMS, "layer_norm_eps": 1e-5, "position_kind": "learned", "position_offset": 2},
    limits=(Limit("layer_norm_elementwise_affine", (True,), "norms have no weights"),),
)
