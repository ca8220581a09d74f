"""GPT-J: rotary pairs side by side in the first `rotary_dim` numbers of a head, one norm for attention and mlp."""

import math
from typing import Any

from ms_weightconv.contract import Config
from ms_weightconv.errors import ConfigError
from ms_weightconv.families.lines import ACTIVATIONS, BLOCK, COMMON_FIELDS, LAYER_NORMS, dropout, linear, token_ids
from ms_weightconv.family import Derived, Family, Field, TheirConfig
from ms_weightconv.rules import Drop, Rule, Tie

_LAYER = "transformer.h.{layer}"


def _read_rotary(theirs: TheirConfig) -> Config:
    head, rotated = theirs["n_embd"] // theirs["n_head"], theirs.get("rotary_dim", 64)
    if not isinstance(rotated, int) or not 0 < rotated <= head:
        raise ConfigError(f"rotary_dim: found {rotated!r:.100}, expected a number from 1 to {head}")
    share = rotated / head
    # The contract takes int(head * share): keep a quotient that was rounded down from falling below the number.
    return {"partial_rotary_factor": share if int(head * share) == rotated else math.nextafter(share, 1.0)}


def _write_rotary(config: Config) -> dict[str, Any]:
    return {"rotary_dim": int(config["head_dim"] * config["partial_rotary_factor"])}


GPTJ = Family(
    name="gptj",
    architecture="GPTJForCausalLM",
    prefix="transformer.",
    rules=(
        Rule("transformer.wte.weight", "embedding.weight"),
        *linear(f"{_LAYER}.ln_1", f"{BLOCK}.attention_norm", bias=""),
        *linear(f"{_LAYER}.attn.q_proj", f"{BLOCK}.attention.query"),
        *linear(f"{_LAYER}.attn.k_proj", f"{BLOCK}.attention.key"),
        *linear(f"{_LAYER}.attn.v_proj", f"{BLOCK}.attention.value"),
        *linear(f"{_LAYER}.attn.out_proj", f"{BLOCK}.attention.output"),
        *linear(f"{_LAYER}.mlp.fc_in", f"{BLOCK}.mlp.up", bias=""),
        *linear(f"{_LAYER}.mlp.fc_out", f"{BLOCK}.mlp.down", bias=""),
        *linear("transformer.ln_f", "norm", bias=""),
        Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
        Rule("lm_head.bias", "lm_head.bias"),
        Drop(f"{_LAYER}.attn.bias", "a causal mask, not a weight"),
        Drop(f"{_LAYER}.attn.masked_bias", "a constant of the causal mask"),
        Drop(f"{_LAYER}.attn.embed_positions", "a table of sines and cosines, not a weight"),
    ),
    fields=(
        *COMMON_FIELDS,
        *dropout("attn_pdrop", residual="resid_pdrop", embedding="embd_pdrop"),
        *token_ids(50256, 50256),
        Field("n_embd", "hidden_size"),
        Field("n_layer", "num_hidden_layers"),
        Field("n_head", "num_attention_heads"),
        Field("n_positions", "max_position_embeddings", 2048),
        Field("n_inner", "intermediate_size", None, when_null=lambda theirs: 4 * theirs["n_embd"]),
        Field("layer_norm_epsilon", "layer_norm_eps", 1e-5),
        Field("activation_function", "hidden_act", "gelu_new", spellings=ACTIVATIONS),
        Field("tie_word_embeddings", "tie_word_embeddings", False),
        Derived(("rotary_dim",), ("partial_rotary_factor",), _read_rotary, _write_rotary),
    ),
    constants={
        **LAYER_NORMS,
        "mlp_bias": True,
        "lm_head_bias": True,
        "rope_interleaved": True,
        "parallel_residual": True,
        "parallel_norm_is_shared": True,
    },
)
