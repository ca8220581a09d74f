"""Published models with RMS norms: Llama, Mistral, Mixtral, Qwen, Gemma, as plain values."""

import math
from typing import Any

from ms_gptmodel.presets_gpt import sizes

_LLAMA3: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
_QWEN2: dict[str, Any] = {
    "model_type": "qwen2",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "attention_bias": True,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
}
_QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "qk_norm": True,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
_GEMMA: dict[str, Any] = {
    "vocab_size": 256000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rms_norm_adds_one": True,
    "hidden_act": "gelu_new",
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def _stretched(factor: float) -> dict[str, Any]:
    stretch = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": factor, **stretch}}


_LLAMA_7B = {**sizes(4096, 32, 32, 11008), "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2}

LLAMA_PRESETS: dict[str, dict[str, Any]] = {
    "llama_7b": {**_LLAMA_7B, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    "llama2_7b": {**_LLAMA_7B, "max_position_embeddings": 4096},
    "llama3_8b": {**_LLAMA3, **sizes(4096, 32, 32, 14336), "max_position_embeddings": 8192},
    "llama3_1_8b": {**_LLAMA3, **sizes(4096, 32, 32, 14336), **_stretched(8.0)},
    "llama3_2_1b": {**_LLAMA3, **sizes(2048, 16, 32, 8192), **_stretched(32.0), "tie_word_embeddings": True},
    "mistral_7b_v0_3": {
        **sizes(4096, 32, 32, 14336),
        "model_type": "mistral",
        "vocab_size": 32768,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "qwen2_0_5b": {
        **_QWEN2,
        **sizes(896, 24, 14, 4864),
        "vocab_size": 151936,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "qwen2_7b": {
        **_QWEN2,
        **sizes(3584, 28, 28, 18944),
        "vocab_size": 152064,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
    },
    "qwen3_0_6b": {**_QWEN3, **sizes(1024, 28, 16, 3072), "tie_word_embeddings": True},
    "qwen3_8b": {**_QWEN3, **sizes(4096, 36, 32, 12288)},
    "qwen3_30b_a3b": {
        **_QWEN3,
        **sizes(2048, 48, 32, 6144),
        "model_type": "qwen3_moe",
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "router_aux_loss_coef": 0.001,
    },
    "mixtral_8x7b": {
        **sizes(4096, 32, 32, 14336),
        "model_type": "mixtral",
        "vocab_size": 32000,
        "num_key_value_heads": 8,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "num_experts": 8,
        "router_aux_loss_coef": 0.02,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "gemma_2b": {
        **_GEMMA,
        **sizes(2048, 18, 8, 16384),
        "model_type": "gemma",
        "num_key_value_heads": 1,
        "embedding_multiplier": math.sqrt(2048),
    },
    "gemma2_2b": {
        **_GEMMA,
        **sizes(2304, 26, 8, 9216),
        "model_type": "gemma2",
        "num_key_value_heads": 4,
        "embedding_multiplier": math.sqrt(2304),
        "norm_placement": "sandwich",
        "query_pre_attn_scalar": 256.0,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "layer_types": ["sliding_attention", "full_attention"] * 13,
    },
    "gemma3_1b": {
        **_GEMMA,
        **sizes(1152, 26, 4, 6912),
        "model_type": "gemma3_text",
        "vocab_size": 262144,
        "num_key_value_heads": 1,
        "max_position_embeddings": 32768,
        "embedding_multiplier": math.sqrt(1152),
        "norm_placement": "sandwich",
        "qk_norm": True,
        "query_pre_attn_scalar": 256.0,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 512,
        "layer_types": [*(["sliding_attention"] * 5 + ["full_attention"]) * 4, *["sliding_attention"] * 2],
    },
}
