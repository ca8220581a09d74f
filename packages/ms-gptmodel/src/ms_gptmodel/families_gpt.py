"""Families that are not of Llama's kind, with layer norms: what a config.json of GPT-2, BLOOM, BERT and so on means."""

import math

from ms_gptmodel.huggingface import HuggingFaceValues, Keys

_LAYER_NORMS: Keys = {"norm_kind": "layer_norm", "norm_bias": True, "gated_mlp": False}
_ALL_BIASES: Keys = {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True}


def _old_sizes(t: HuggingFaceValues) -> Keys:
    """GPT-2's and GPT-J's names."""
    sizes = {
        "vocab_size": t.take("vocab_size"),
        "hidden_size": t.take("n_embd", "hidden_size"),
        "num_hidden_layers": t.take("n_layer", "num_hidden_layers"),
        "num_attention_heads": t.take("n_head", "num_attention_heads"),
        "max_position_embeddings": t.take("n_positions", "max_position_embeddings"),
        "initializer_range": t.take("initializer_range", default=0.02),
        "layer_norm_eps": t.take("layer_norm_epsilon", default=1e-5),
        "embedding_dropout": t.take("embd_pdrop", default=0.0),
        "residual_dropout": t.take("resid_pdrop", default=0.0),
        "attention_dropout": t.take("attn_pdrop", default=0.0),
    }
    sizes["intermediate_size"] = t.take("n_inner", default=4 * sizes["hidden_size"])
    return sizes


def gpt2(t: HuggingFaceValues) -> Keys:
    """Learned positions, tanh GELU, tied (Radford et al. 2019)."""
    t.only("scale_attn_weights", (True,), "attention scores are not divided by the root of head_dim")
    t.only("scale_attn_by_inverse_layer_idx", (False,), "attention scores are divided by the layer's number")
    t.only("add_cross_attention", (False,), "cross attention")
    return {
        **_old_sizes(t), **_LAYER_NORMS, **_ALL_BIASES, "position_kind": "learned",
        "hidden_act": t.activation("activation_function", default="gelu_new"),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=True),
    }  # fmt: skip


def gpt_neox(t: HuggingFaceValues) -> Keys:
    """Parallel branches with a norm each, part of a head rotated (Black et al. 2022); Pythia."""
    keys = t.sizes() | _LAYER_NORMS
    has_bias = t.take("attention_bias", default=True)
    dropout = t.take("hidden_dropout", default=0.0)
    return {
        **keys, **t.rope(keys, factor=0.25), "intermediate_size": t.take("intermediate_size"),
        "hidden_act": t.activation("hidden_act", default="gelu"),
        "layer_norm_eps": t.take("layer_norm_eps", default=1e-5),
        "attention_bias": has_bias, "attention_output_bias": has_bias, "mlp_bias": True,
        "parallel_residual": t.take("use_parallel_residual", default=True),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=False),
        "embedding_dropout": dropout, "residual_dropout": dropout,
        "attention_dropout": t.take("attention_dropout", default=0.0),
    }  # fmt: skip


def gptj(t: HuggingFaceValues) -> Keys:
    """Parallel branches with one norm, neighbours rotated (Wang and Komatsuzaki 2021)."""
    keys = _old_sizes(t) | _LAYER_NORMS
    head_dim = keys["hidden_size"] // keys["num_attention_heads"]
    rotary_dim = t.take("rotary_dim")
    factor = rotary_dim / head_dim
    if int(head_dim * factor) < rotary_dim:  # the quotient was rounded down
        factor = math.nextafter(factor, 1.0)
    return {
        **keys, "rope_interleaved": True, "partial_rotary_factor": factor, "mlp_bias": True, "lm_head_bias": True,
        "parallel_residual": True, "parallel_norm_is_shared": True,
        "hidden_act": t.activation("activation_function", default="gelu_new"),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=False),
    }  # fmt: skip


def opt(t: HuggingFaceValues) -> Keys:
    """Learned positions from row 2, ReLU (Zhang et al. 2022)."""
    t.only("layer_norm_elementwise_affine", (True,), "norms without weights")
    t.take("init_std", default=None)
    is_pre, has_bias = t.take("do_layer_norm_before", default=True), t.take("enable_bias", default=True)
    lacks_last = t.take("_remove_final_layer_norm", default=False)
    keys = t.sizes()
    return {
        **keys, **_LAYER_NORMS, "position_kind": "learned", "position_offset": 2,
        "intermediate_size": t.take("ffn_dim"), "norm_placement": "pre" if is_pre else "post",
        "final_norm": is_pre and not lacks_last,
        "embedding_size": t.take("word_embed_proj_dim", default=keys["hidden_size"]),
        "hidden_act": t.activation("activation_function", default="relu"),
        "attention_bias": has_bias, "attention_output_bias": has_bias, "mlp_bias": has_bias,
        "tie_word_embeddings": t.take("tie_word_embeddings", default=True),
        "residual_dropout": t.take("dropout", default=0.0),
        "attention_dropout": t.take("attention_dropout", default=0.0),
    }  # fmt: skip


def bloom(t: HuggingFaceValues) -> Keys:
    """ALiBi, a norm after the embedding (Scao et al. 2022)."""
    t.only("apply_residual_connection_post_layernorm", (False,), "residuals start after the norm")
    hidden = t.take("hidden_size", "n_embed")
    return {
        **_LAYER_NORMS, **_ALL_BIASES, "vocab_size": t.take("vocab_size"), "hidden_size": hidden,
        "num_hidden_layers": t.take("n_layer", "num_hidden_layers"), "intermediate_size": 4 * hidden,
        "num_attention_heads": t.take("n_head", "num_attention_heads"),
        "max_position_embeddings": t.take("seq_length", "max_position_embeddings", default=2048),
        "initializer_range": t.take("initializer_range", default=0.02),
        "layer_norm_eps": t.take("layer_norm_epsilon", default=1e-5), "position_kind": "alibi", "embedding_norm": True,
        "hidden_act": "gelu_new", "tie_word_embeddings": t.take("tie_word_embeddings", default=True),
        "residual_dropout": t.take("hidden_dropout", default=0.0),
        "attention_dropout": t.take("attention_dropout", default=0.0),
    }  # fmt: skip


def falcon(t: HuggingFaceValues) -> Keys:
    """Parallel branches, one or few key/value heads (Almazrouei et al. 2023)."""
    t.only("alibi", (False, None), "Falcon divides ALiBi's slopes by the root of head_dim and rounds them to bfloat16")
    keys = {
        "vocab_size": t.take("vocab_size"),
        "hidden_size": t.take("hidden_size", "n_embed"),
        "num_hidden_layers": t.take("num_hidden_layers", "n_layer"),
        "num_attention_heads": t.take("num_attention_heads", "n_head"),
        "max_position_embeddings": t.take("max_position_embeddings", default=2048),
        "initializer_range": t.take("initializer_range", default=0.02),
    }
    is_new, is_parallel = t.take("new_decoder_architecture", default=False), t.take("parallel_attn", default=True)
    has_one, has_bias = t.take("multi_query", default=True), t.take("bias", default=False)
    kv_heads = t.take("num_kv_heads", "n_head_kv", default=keys["num_attention_heads"])
    num_norms = t.take("num_ln_in_parallel_attn", default=2 if is_new else 1)
    is_parallel = is_parallel or is_new
    return {
        **keys, **_LAYER_NORMS, **t.rope(keys), "num_key_value_heads": kv_heads if is_new or not has_one else 1,
        "intermediate_size": t.take("ffn_hidden_size", default=4 * keys["hidden_size"]),
        "layer_norm_eps": t.take("layer_norm_epsilon", default=1e-5),
        "hidden_act": t.activation("activation", default="gelu"), "parallel_residual": is_parallel,
        "parallel_norm_is_shared": is_parallel and not (is_new and num_norms == 2),
        "attention_bias": has_bias, "attention_output_bias": has_bias, "mlp_bias": has_bias,
        "tie_word_embeddings": t.take("tie_word_embeddings", default=True),
        "residual_dropout": t.take("hidden_dropout", default=0.0),
        "attention_dropout": t.take("attention_dropout", default=0.0),
    }  # fmt: skip


def phi(t: HuggingFaceValues) -> Keys:
    """Parallel branches with one norm, biases everywhere (Li et al. 2023)."""
    t.only("qk_layernorm", (False,), "layer norms of queries and keys")
    keys = t.sizes()
    return {
        **keys, **_LAYER_NORMS, **_ALL_BIASES, **t.rope(keys, factor=0.5), "lm_head_bias": True,
        "intermediate_size": t.take("intermediate_size"), "parallel_residual": True, "parallel_norm_is_shared": True,
        "num_key_value_heads": t.take("num_key_value_heads", default=None),
        "hidden_act": t.activation("hidden_act", default="gelu_new"),
        "layer_norm_eps": t.take("layer_norm_eps", default=1e-5),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=False),
        "embedding_dropout": t.take("embd_pdrop", default=0.0), "residual_dropout": t.take("resid_pdrop", default=0.0),
        "attention_dropout": t.take("attention_dropout", default=0.0),
    }  # fmt: skip


def bert(t: HuggingFaceValues) -> Keys:
    """Norms after the sums, attention both ways, a masked-LM head (Devlin et al. 2018)."""
    t.only("position_embedding_type", ("absolute",), "relative positions")
    t.only("add_cross_attention", (False,), "cross attention")
    t.only("is_decoder", (False,), "a decoder of BERT's kind")
    dropout = t.take("hidden_dropout_prob", default=0.0)
    return {
        **t.sizes(), **_LAYER_NORMS, **_ALL_BIASES, "intermediate_size": t.take("intermediate_size"),
        "position_kind": "learned", "norm_placement": "post", "final_norm": False, "embedding_norm": True,
        "is_causal": False, "type_vocab_size": t.take("type_vocab_size", default=2), "lm_head_transform": True,
        "lm_head_bias": True, "hidden_act": t.activation("hidden_act", default="gelu"),
        "layer_norm_eps": t.take("layer_norm_eps", default=1e-12),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=True), "embedding_dropout": dropout,
        "residual_dropout": dropout, "attention_dropout": t.take("attention_probs_dropout_prob", default=0.0),
    }  # fmt: skip
