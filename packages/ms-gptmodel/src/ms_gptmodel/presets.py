"""Configs of published models by name: facts from their papers and config files, as plain values."""

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
}


def preset(name: str, **changes: Any) -> ModelConfig:
    """The config of the published model `name`, with `changes` on top.

    Raises ConfigError, naming the known ones, when there is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r}: unknown; known: {', '.join(PRESETS)}")
    return ModelConfig.from_mapping({**PRESETS[name], **changes}, f"preset {name}")
