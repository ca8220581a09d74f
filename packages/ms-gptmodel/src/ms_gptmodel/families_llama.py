"""Families with Llama's cells: what a config.json of Llama, Mistral, Qwen or Gemma means."""

import math

from ms_gptmodel.huggingface import HuggingFaceValues, Keys


def llama_like(
    t: HuggingFaceValues, *, eps: float = 1e-6, key_value_heads: int | None = None, theta: float = 10000.0,
    is_tied: bool = False,
) -> Keys:  # fmt: skip
    """What all of Llama's kind have; the arguments are a family's defaults."""
    keys = t.sizes()
    return {
        **keys, **t.rope(keys, theta=theta), "intermediate_size": t.take("intermediate_size"),
        "num_key_value_heads": t.take("num_key_value_heads", default=key_value_heads),
        "head_dim": t.take("head_dim", default=None), "rms_norm_eps": t.take("rms_norm_eps", default=eps),
        "hidden_act": t.activation("hidden_activation", "hidden_act", default="silu"),
        "tie_word_embeddings": t.take("tie_word_embeddings", default=is_tied),
        "attention_dropout": t.take("attention_dropout", default=0.0),
    }  # fmt: skip


def attention_biases(t: HuggingFaceValues) -> Keys:
    """One switch for the biases of all four projections."""
    has_bias = t.take("attention_bias", default=False)
    return {"attention_bias": has_bias, "attention_output_bias": has_bias}


def llama(t: HuggingFaceValues) -> Keys:
    """RMS norms, rotary halves, gated SiLU (Touvron et al. 2023)."""
    return {**llama_like(t), **attention_biases(t), "mlp_bias": t.take("mlp_bias", default=False)}


def mistral(t: HuggingFaceValues) -> Keys:
    """A window in every layer (Jiang et al. 2023)."""
    return {**llama_like(t, key_value_heads=8), "sliding_window": t.take_or_null("sliding_window", absent=4096)}


def windows(t: HuggingFaceValues, keys: Keys, default: list[str]) -> Keys:
    """The window and the layers that slide: as `layer_types` says, or `default`."""
    window, types = t.take_or_null("sliding_window", absent=4096), t.take("layer_types", default=default)
    if window is None or "sliding_attention" not in types:
        return keys
    return {**keys, "sliding_window": window, "layer_types": list(types)}


def _qwen_windows(t: HuggingFaceValues, keys: Keys) -> Keys:
    """Layers from max_window_layers on slide, if asked for."""
    slides, first = t.take("use_sliding_window", default=False), t.take("max_window_layers", default=28)
    layers = range(keys["num_hidden_layers"])
    return windows(t, keys, ["sliding_attention" if slides and n >= first else "full_attention" for n in layers])


def qwen2(t: HuggingFaceValues) -> Keys:
    """Biases of queries, keys and values (Yang et al. 2024)."""
    return _qwen_windows(t, {**llama_like(t, key_value_heads=32), "attention_bias": True})


def qwen3(t: HuggingFaceValues) -> Keys:
    """Norms of queries and keys (Qwen team 2025)."""
    keys = {**llama_like(t, key_value_heads=32), **attention_biases(t), "qk_norm": True}
    return _qwen_windows(t, {**keys, "head_dim": keys["head_dim"] or 128})


def gemma(t: HuggingFaceValues) -> Keys:
    """Norms add one, the embedding is multiplied (Gemma team 2024)."""
    t.only("use_bidirectional_attention", (None, False), "attention that sees later positions")
    keys = llama_like(t, key_value_heads=None, is_tied=True)
    return {
        **keys, **attention_biases(t), "rms_norm_adds_one": True, "head_dim": keys["head_dim"] or 256,
        "embedding_multiplier": math.sqrt(keys["hidden_size"]),
        "hidden_act": "gelu_new" if keys["hidden_act"] == "gelu" else keys["hidden_act"],  # early files said gelu
    }  # fmt: skip


def _sandwich(t: HuggingFaceValues, *, attention_cap: float | None, logit_cap: float | None) -> Keys:
    """What Gemma 2 and 3 have in common."""
    return {
        **gemma(t), "norm_placement": "sandwich",
        "query_pre_attn_scalar": float(t.take("query_pre_attn_scalar", default=256)),
        "attn_logit_softcapping": t.take_or_null("attn_logit_softcapping", absent=attention_cap),
        "final_logit_softcapping": t.take_or_null("final_logit_softcapping", absent=logit_cap),
    }  # fmt: skip


def gemma2(t: HuggingFaceValues) -> Keys:
    """Norms on both sides, soft caps, every other layer slides (Gemma team 2024)."""
    keys = _sandwich(t, attention_cap=50.0, logit_cap=30.0)
    layers = range(keys["num_hidden_layers"])
    return windows(t, keys, ["full_attention" if n % 2 else "sliding_attention" for n in layers])


def gemma3(t: HuggingFaceValues) -> Keys:
    """Norms of queries and keys, five of six layers slide with a base of their own (Gemma team 2025)."""
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
    keys = windows(t, keys, ["sliding_attention" if (n + 1) % pattern else "full_attention" for n in layers])
    return {**keys, "rope_local_base_freq": base if "sliding_window" in keys else None}
