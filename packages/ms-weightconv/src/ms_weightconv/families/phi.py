"""Phi (one norm for attention and mlp, biases everywhere) and Phi-3 (Llama with fused projections)."""

from ms_weightconv.families.lines import (
    ACTIVATIONS,
    ALL_BIASES,
    BLOCK,
    COMMON_FIELDS,
    LAYER_NORMS,
    QUERY_KEY_VALUE,
    SIZE_FIELDS,
    dropout,
    heads,
    linear,
    token_ids,
)
from ms_weightconv.families.llama import FIELDS, LAYER, NORMS, table
from ms_weightconv.family import Family, Field, Limit
from ms_weightconv.rope import rotary_keys
from ms_weightconv.rules import Drop, Rule, Tie
from ms_weightconv.steps import Split
from ms_weightconv.windows import one_window

PHI = Family(
    name="phi",
    architecture="PhiForCausalLM",
    prefix="model.",
    rules=(
        Rule("model.embed_tokens.weight", "embedding.weight"),
        *linear(f"{LAYER}.input_layernorm", f"{BLOCK}.attention_norm", bias=""),
        *linear(f"{LAYER}.self_attn.q_proj", f"{BLOCK}.attention.query", bias=""),
        *linear(f"{LAYER}.self_attn.k_proj", f"{BLOCK}.attention.key", bias=""),
        *linear(f"{LAYER}.self_attn.v_proj", f"{BLOCK}.attention.value", bias=""),
        *linear(f"{LAYER}.self_attn.dense", f"{BLOCK}.attention.output", bias=""),
        *linear(f"{LAYER}.mlp.fc1", f"{BLOCK}.mlp.up", bias=""),
        *linear(f"{LAYER}.mlp.fc2", f"{BLOCK}.mlp.down", bias=""),
        *linear("model.final_layernorm", "norm", bias=""),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
        Rule("lm_head.bias", "lm_head.bias"),
        Drop(f"{LAYER}.self_attn.rotary_emb.inv_freq", "computed from rope_theta"),
    ),
    fields=(
        *COMMON_FIELDS,
        *dropout(residual="resid_pdrop", embedding="embd_pdrop"),
        *SIZE_FIELDS,
        *token_ids(1, 2),
        Field("num_key_value_heads", "num_key_value_heads", None, when_null=heads),
        Field("layer_norm_eps", "layer_norm_eps", 1e-5),
        Field("hidden_act", "hidden_act", "gelu_new", spellings=ACTIVATIONS),
        Field("tie_word_embeddings", "tie_word_embeddings", False),
        rotary_keys(partial=0.5),
    ),
    constants={
        **LAYER_NORMS,
        **ALL_BIASES,
        "lm_head_bias": True,
        "parallel_residual": True,
        "parallel_norm_is_shared": True,
    },
    limits=(Limit("qk_layernorm", (False,), "queries and keys pass layer norms"),),
)

PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    prefix="model.",
    rules=table(
        Rule(
            f"{LAYER}.self_attn.qkv_proj.weight",
            tuple(f"{BLOCK}.attention.{part}.weight" for part in QUERY_KEY_VALUE),
            (Split(*QUERY_KEY_VALUE),),
        ),
        *linear(f"{LAYER}.self_attn.o_proj", f"{BLOCK}.attention.output"),
        *NORMS,
        Rule(
            f"{LAYER}.mlp.gate_up_proj.weight",
            (f"{BLOCK}.mlp.gate.weight", f"{BLOCK}.mlp.up.weight"),
            (Split("gate", "up"),),
        ),
        *linear(f"{LAYER}.mlp.down_proj", f"{BLOCK}.mlp.down"),
    ),
    fields=(
        *(field for field in FIELDS if field.theirs not in ("rms_norm_eps", "attention_dropout")),
        *dropout(residual="resid_pdrop", embedding="embd_pdrop"),
        Field("rms_norm_eps", "rms_norm_eps", 1e-5),
        *token_ids(1, 32000, 32000),
        Field("num_key_value_heads", "num_key_value_heads", None, when_null=heads),
        Field("head_dim", "head_dim", None, is_written_when_none=False),
        rotary_keys(partial=1.0, longrope_names=("longrope", "su", "yarn")),
        one_window(None),
    ),
    constants={},
)
