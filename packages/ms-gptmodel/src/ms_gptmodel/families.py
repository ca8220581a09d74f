"""The families: what each one's config.json of Hugging Face means in the keys of contract `model`."""

import math
from collections.abc import Callable
from typing import Any

from ms_gptmodel.huggingface import HuggingFaceValues

Keys = dict[str, Any]

_LAYER_NORMS: Keys = {"norm_kind": "layer_norm", "norm_bias": True, "gated_mlp": False}
_ALL_BIASES: Keys = {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True}


def _sizes(t: HuggingFaceValues) -> Keys:
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
    return {name: t.take(name) for name in names} | {"initializer_range": t.take("initializer_range", default=0.02)}


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


def _gpt2(t: HuggingFaceValues) -> Keys:
    t.only("scale_attn_weights", (True,), "attention scores are not divided by the root of head_dim")
    t.only("scale_attn_by_inverse_layer_idx", (False,), "attention scores are divided by the layer's number")
    t.only("add_cross_attention", (False,), "cross attention")
    return {
        **_old_sizes(t), **_LAYER_NORMS, **_ALL_BIASES, "position_kind": "learned",
        "hidden_act": t.activation("activation_function", default="gelu_new"),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=True),
    }  # fmt: skip


def _gpt_neox(t: HuggingFaceValues) -> Keys:
    keys = _sizes(t) | _LAYER_NORMS
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


def _gptj(t: HuggingFaceValues) -> Keys:
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


def _opt(t: HuggingFaceValues) -> Keys:
    t.only("layer_norm_elementwise_affine", (True,), "norms without weights")
    t.take("init_std", default=None)
    is_pre, has_bias = t.take("do_layer_norm_before", default=True), t.take("enable_bias", default=True)
    lacks_last = t.take("_remove_final_layer_norm", default=False)
    keys = _sizes(t)
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


def _bloom(t: HuggingFaceValues) -> Keys:
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


def _falcon(t: HuggingFaceValues) -> Keys:
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


def _phi(t: HuggingFaceValues) -> Keys:
    t.only("qk_layernorm", (False,), "layer norms of queries and keys")
    keys = _sizes(t)
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


def _llama_like(
    t: HuggingFaceValues, *, eps: float = 1e-6, key_value_heads: int | None = None, theta: float = 10000.0,
    is_tied: bool = False,
) -> Keys:  # fmt: skip
    keys = _sizes(t)
    return {
        **keys, **t.rope(keys, theta=theta), "intermediate_size": t.take("intermediate_size"),
        "num_key_value_heads": t.take("num_key_value_heads", default=key_value_heads),
        "head_dim": t.take("head_dim", default=None), "rms_norm_eps": t.take("rms_norm_eps", default=eps),
        "hidden_act": t.activation("hidden_activation", "hidden_act", default="silu"),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=is_tied),
        "attention_dropout": t.take("attention_dropout", default=0.0),
    }  # fmt: skip


def _attention_biases(t: HuggingFaceValues) -> Keys:
    has_bias = t.take("attention_bias", default=False)
    return {"attention_bias": has_bias, "attention_output_bias": has_bias}


def _llama(t: HuggingFaceValues) -> Keys:
    return {**_llama_like(t), **_attention_biases(t), "mlp_bias": t.take("mlp_bias", default=False)}


def _mistral(t: HuggingFaceValues) -> Keys:
    return {**_llama_like(t, key_value_heads=8), "sliding_window": t.take_or_null("sliding_window", absent=4096)}


def _windows(t: HuggingFaceValues, keys: Keys, default: list[str]) -> Keys:
    """The window and the layers that slide: as `layer_types` says, or `default`."""
    window, types = t.take_or_null("sliding_window", absent=4096), t.take("layer_types", default=default)
    if window is None or "sliding_attention" not in types:
        return keys
    return {**keys, "sliding_window": window, "layer_types": list(types)}


def _qwen_windows(t: HuggingFaceValues, keys: Keys) -> Keys:
    """Layers from max_window_layers on slide, if asked for."""
    slides, first = t.take("use_sliding_window", default=False), t.take("max_window_layers", default=28)
    layers = range(keys["num_hidden_layers"])
    return _windows(t, keys, ["sliding_attention" if slides and n >= first else "full_attention" for n in layers])


def _qwen2(t: HuggingFaceValues) -> Keys:
    return _qwen_windows(t, {**_llama_like(t, key_value_heads=32), "attention_bias": True})


def _qwen3(t: HuggingFaceValues) -> Keys:
    keys = {**_llama_like(t, key_value_heads=32), **_attention_biases(t), "qk_norm": True}
    return _qwen_windows(t, {**keys, "head_dim": keys["head_dim"] or 128})


def _gemma(t: HuggingFaceValues) -> Keys:
    t.only("use_bidirectional_attention", (None, False), "attention that sees later positions")
    keys = _llama_like(t, key_value_heads=None, is_tied=True)
    return {
        **keys, **_attention_biases(t), "rms_norm_adds_one": True, "head_dim": keys["head_dim"] or 256,
        "embedding_multiplier": math.sqrt(keys["hidden_size"]),
        "hidden_act": "gelu_new" if keys["hidden_act"] == "gelu" else keys["hidden_act"],  # early files said gelu
    }  # fmt: skip


def _sandwich(t: HuggingFaceValues, *, attention_cap: float | None, logit_cap: float | None) -> Keys:
    """What Gemma 2 and 3 have in common."""
    return {
        **_gemma(t), "norm_placement": "sandwich",
        "query_pre_attn_scalar": float(t.take("query_pre_attn_scalar", default=256)),
        "attn_logit_softcapping": t.take_or_null("attn_logit_softcapping", absent=attention_cap),
        "final_logit_softcapping": t.take_or_null("final_logit_softcapping", absent=logit_cap),
    }  # fmt: skip


def _gemma2(t: HuggingFaceValues) -> Keys:
    keys = _sandwich(t, attention_cap=50.0, logit_cap=30.0)
    layers = range(keys["num_hidden_layers"])
    return _windows(t, keys, ["full_attention" if n % 2 else "sliding_attention" for n in layers])


def _gemma3(t: HuggingFaceValues) -> Keys:
    parameters = t.take("rope_parameters", default={})  # transformers 5 has one set for each type of layer
    local = parameters.get("sliding_attention", {})
    base = float(t.take("rope_local_base_freq", default=local.get("rope_theta", 10000.0)))
    t.put("rope_type_of_sliding_layers", local.get("rope_type", "default"))
    t.only("rope_type_of_sliding_layers", ("default",), "scaled rotation in layers that slide")
    t.put("rope_parameters", {"rope_theta": t.take("rope_theta", default=1000000.0)})
    if parameters:
        t.put("rope_parameters", parameters.get("full_attention", parameters))
    pattern = t.take("sliding_window_pattern", "_sliding_window_pattern", default=6)
    keys = {**_sandwich(t, attention_cap=None, logit_cap=None), "qk_norm": True}
    layers = range(keys["num_hidden_layers"])
    keys = _windows(t, keys, ["sliding_attention" if (n + 1) % pattern else "full_attention" for n in layers])
    return {**keys, "rope_local_base_freq": base if "sliding_window" in keys else None}


def _mixtral(t: HuggingFaceValues) -> Keys:
    t.only("router_jitter_noise", (0.0, None), "noise on the router's input")
    return {
        **_llama_like(t, eps=1e-5, key_value_heads=8, theta=1000000.0),
        "sliding_window": t.take("sliding_window", default=None),
        "num_experts": t.take("num_local_experts", "num_experts", default=8),
        "num_experts_per_tok": t.take("num_experts_per_tok", default=2), "norm_topk_prob": True,
        "router_aux_loss_coef": t.take("router_aux_loss_coef", default=0.001),
    }  # fmt: skip


def _experts(t: HuggingFaceValues, keys: Keys, *, num_experts: int, per_token: int, width: int) -> Keys:
    """Qwen's keys of experts."""
    step, dense = t.take("decoder_sparse_step", default=1), t.take("mlp_only_layers", default=[])
    layers = range(keys["num_hidden_layers"])
    return {
        **keys, "num_experts": t.take("num_experts", "num_local_experts", default=num_experts),
        "num_experts_per_tok": t.take("num_experts_per_tok", default=per_token),
        "norm_topk_prob": t.take("norm_topk_prob", default=False),
        "moe_intermediate_size": t.take("moe_intermediate_size", default=width),
        "router_aux_loss_coef": t.take("router_aux_loss_coef", default=0.001),
        "mlp_only_layers": [n for n in layers if n in dense or (n + 1) % step],
    }  # fmt: skip


def _qwen2_moe(t: HuggingFaceValues) -> Keys:
    keys = {**_llama_like(t, key_value_heads=16), "attention_bias": t.take("qkv_bias", default=True)}
    keys = _experts(t, keys, num_experts=60, per_token=4, width=1408)
    keys["shared_expert_intermediate_size"] = t.take("shared_expert_intermediate_size", default=5632)
    keys["shared_expert_is_gated"] = True
    slides, first = t.take("use_sliding_window", default=False), t.take("max_window_layers", default=28)
    layers = range(keys["num_hidden_layers"])
    slide = [slides and n % 2 == 0 and n < first for n in layers]
    return _windows(t, keys, ["sliding_attention" if s else "full_attention" for s in slide])


def _qwen3_moe(t: HuggingFaceValues) -> Keys:
    keys = {**_llama_like(t, key_value_heads=4), **_attention_biases(t), "qk_norm": True}
    slides, window = t.take("use_sliding_window", default=False), t.take_or_null("sliding_window", absent=4096)
    keys["sliding_window"] = window if slides else None
    return _experts(t, keys, num_experts=128, per_token=8, width=768)


def _deepseek(t: HuggingFaceValues) -> Keys:
    """DeepSeek-MoE (Dai et al. 2024); its successors have another attention, which the contract has no keys for."""
    t.only("scoring_func", ("softmax",), "the router's scores are no softmax")
    t.only("topk_method", ("greedy", None), "experts are chosen by groups")
    t.only("routed_scaling_factor", (1.0, None), "the experts' sum is scaled")
    t.only("seq_aux", (True, False), "another auxiliary loss")
    keys = {**_llama_like(t), **_attention_biases(t)}
    first, step = t.take("first_k_dense_replace", default=0), t.take("moe_layer_freq", default=1)
    width, num_shared = t.take("moe_intermediate_size"), t.take("n_shared_experts", default=0)
    return {
        **keys, "num_experts": t.take("n_routed_experts"), "num_experts_per_tok": t.take("num_experts_per_tok"),
        "norm_topk_prob": t.take("norm_topk_prob", default=False), "moe_intermediate_size": width,
        "shared_expert_intermediate_size": num_shared * width,
        "mlp_only_layers": [n for n in range(keys["num_hidden_layers"]) if n < first or n % step],
        "router_aux_loss_coef": t.take("aux_loss_alpha", default=0.001),
    }  # fmt: skip


def _bert(t: HuggingFaceValues) -> Keys:
    t.only("position_embedding_type", ("absolute",), "relative positions")
    t.only("add_cross_attention", (False,), "cross attention")
    t.only("is_decoder", (False,), "a decoder of BERT's kind")
    dropout = t.take("hidden_dropout_prob", default=0.0)
    return {
        **_sizes(t), **_LAYER_NORMS, **_ALL_BIASES, "intermediate_size": t.take("intermediate_size"),
        "position_kind": "learned", "norm_placement": "post", "final_norm": False, "embedding_norm": True,
        "is_causal": False, "type_vocab_size": t.take("type_vocab_size", default=2), "lm_head_transform": True,
        "lm_head_bias": True, "hidden_act": t.activation("hidden_act", default="gelu"),
        "layer_norm_eps": t.take("layer_norm_eps", default=1e-12),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=True), "embedding_dropout": dropout,
        "residual_dropout": dropout, "attention_dropout": t.take("attention_probs_dropout_prob", default=0.0),
    }  # fmt: skip


FAMILIES: dict[str, Callable[[HuggingFaceValues], Keys]] = {
    "bert": _bert,
    "bloom": _bloom,
    "deepseek": _deepseek,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "opt": _opt,
    "phi": _phi,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
"""By model_type. Each takes what it knows from a config.json; who calls it refuses the rest."""
