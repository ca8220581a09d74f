"""Configs of published models by name: facts from their papers and config files, as plain values."""

import math
from typing import Any

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.errors import ConfigError

_GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 50257,
    "max_position_embeddings": 1024,
    "norm_kind": "layer_norm",
    "norm_bias": True,
    "position_kind": "learned",
    "hidden_act": "gelu_new",
    "gated_mlp": False,
    "attention_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
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


_NEOX: dict[str, Any] = {
    **{key: _GPT2[key] for key in ("norm_kind", "norm_bias", "gated_mlp", "mlp_bias")},
    "model_type": "gpt_neox",
    "vocab_size": 50304,
    "max_position_embeddings": 2048,
    "partial_rotary_factor": 0.25,
    "hidden_act": "gelu",
    "parallel_residual": True,
    "attention_bias": True,
    "attention_output_bias": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
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
_BERT: dict[str, Any] = {
    **{key: value for key, value in _GPT2.items() if not key.endswith("token_id")},
    "model_type": "bert",
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "norm_placement": "post",
    "layer_norm_eps": 1e-12,
    "final_norm": False,
    "embedding_norm": True,
    "is_causal": False,
    "lm_head_transform": True,
    "lm_head_bias": True,
    "pad_token_id": 0,
}


def _size(hidden: int, layers: int, heads: int, intermediate: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }


def _stretched(factor: float) -> dict[str, Any]:
    stretch = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": factor, **stretch}}


_LLAMA_7B = {**_size(4096, 32, 32, 11008), "vocab_size": 32000, "bos_token_id": 1, "eos_token_id": 2}

PRESETS: dict[str, dict[str, Any]] = {
    "gpt2_124m": {**_GPT2, **_size(768, 12, 12, 3072)},
    "gpt2_355m": {**_GPT2, **_size(1024, 24, 16, 4096)},
    "gpt2_774m": {**_GPT2, **_size(1280, 36, 20, 5120)},
    "gpt2_1558m": {**_GPT2, **_size(1600, 48, 25, 6400)},
    # The shape of GPT-3's "6.7B" (Brown et al. 2020, table 2.1) with GPT-2's vocabulary.
    "gpt_7b": {**_GPT2, **_size(4096, 32, 32, 16384), "max_position_embeddings": 2048},
    "llama_7b": {**_LLAMA_7B, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    "llama2_7b": {**_LLAMA_7B, "max_position_embeddings": 4096},
    "llama3_8b": {**_LLAMA3, **_size(4096, 32, 32, 14336), "max_position_embeddings": 8192},
    "llama3_1_8b": {**_LLAMA3, **_size(4096, 32, 32, 14336), **_stretched(8.0)},
    "llama3_2_1b": {**_LLAMA3, **_size(2048, 16, 32, 8192), **_stretched(32.0), "tie_word_embeddings": True},
    "mistral_7b_v0_3": {
        **_size(4096, 32, 32, 14336),
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
        **_size(896, 24, 14, 4864),
        "vocab_size": 151936,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
    "qwen2_7b": {
        **_QWEN2,
        **_size(3584, 28, 28, 18944),
        "vocab_size": 152064,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
    },
    "qwen3_0_6b": {**_QWEN3, **_size(1024, 28, 16, 3072), "tie_word_embeddings": True},
    "qwen3_8b": {**_QWEN3, **_size(4096, 36, 32, 12288)},
    "qwen3_30b_a3b": {
        **_QWEN3,
        **_size(2048, 48, 32, 6144),
        "model_type": "qwen3_moe",
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "router_aux_loss_coef": 0.001,
    },
    "mixtral_8x7b": {
        **_size(4096, 32, 32, 14336),
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
        **_size(2048, 18, 8, 16384),
        "model_type": "gemma",
        "num_key_value_heads": 1,
        "embedding_multiplier": math.sqrt(2048),
    },
    "gemma2_2b": {
        **_GEMMA,
        **_size(2304, 26, 8, 9216),
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
        **_size(1152, 26, 4, 6912),
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
    "pythia_1b": {**_NEOX, **_size(2048, 16, 8, 8192)},
    "gptj_6b": {
        **_NEOX,
        **_size(4096, 28, 16, 16384),
        "model_type": "gptj",
        "vocab_size": 50400,
        "rope_interleaved": True,
        "hidden_act": "gelu_new",
        "attention_bias": False,
        "attention_output_bias": False,
        "parallel_norm_is_shared": True,
        "lm_head_bias": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    "phi_2": {
        **_NEOX,
        **_size(2560, 32, 32, 10240),
        "model_type": "phi",
        "vocab_size": 51200,
        "partial_rotary_factor": 0.4,
        "hidden_act": "gelu_new",
        "parallel_norm_is_shared": True,
        "lm_head_bias": True,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    "falcon_7b": {
        **_NEOX,
        **_size(4544, 32, 71, 18176),
        "model_type": "falcon",
        "vocab_size": 65024,
        "num_key_value_heads": 1,
        "partial_rotary_factor": 1.0,
        "attention_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "parallel_norm_is_shared": True,
        "tie_word_embeddings": True,
        "bos_token_id": 11,
        "eos_token_id": 11,
    },
    "opt_125m": {
        **_GPT2,
        **_size(768, 12, 12, 3072),
        "model_type": "opt",
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
        "position_offset": 2,
        "hidden_act": "relu",
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
    },
    "bloom_560m": {
        **_GPT2,
        **_size(1024, 24, 16, 4096),
        "model_type": "bloom",
        "vocab_size": 250880,
        "max_position_embeddings": 2048,
        "position_kind": "alibi",
        "embedding_norm": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 3,
    },
    "bert_base": {**_BERT, **_size(768, 12, 12, 3072)},
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """The config of the published model `name`, with `changes` on top.

    Raises ConfigError, naming the known ones, when there is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r}: unknown; known: {', '.join(PRESETS)}")
    return ModelConfig.from_mapping({**PRESETS[name], **changes}, f"preset {name}")
