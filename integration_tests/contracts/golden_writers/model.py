"""Golden files of contract `model`: configs, their parameters, and rows of the cache."""

from pathlib import Path
from typing import Any

from golden_writers.document import write_json

_LLAMA = {
    "format": "ms-gptmodel.config",
    "version": 1,
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "norm_kind": "rms_norm",
    "rms_norm_eps": 1e-06,
    "layer_norm_eps": 1e-05,
    "norm_bias": False,
    "position_kind": "rotary",
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "hidden_act": "silu",
    "gated_mlp": True,
    "attention_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": None,
    "tokenizer_fingerprint": "sha256:" + "0123456789abcdef" * 4,
}
_GPT2 = _LLAMA | {
    "model_type": "gpt2",
    "intermediate_size": 64,
    "num_key_value_heads": 4,
    "norm_kind": "layer_norm",
    "norm_bias": True,
    "position_kind": "learned",
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "gelu_new",
    "gated_mlp": False,
    "attention_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
    "bos_token_id": 63,
    "eos_token_id": 63,
    "tokenizer_fingerprint": None,
}
_QWEN3 = _LLAMA | {
    "model_type": "qwen3",
    "head_dim": 8,
    "rope_theta": 1000000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "qk_norm": True,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "pad_token_id": 0,
}


# What the keys above leave out, in the contract's defaults, and families that use it.
_REST: dict[str, Any] = {
    "padded_vocab_size": 64, "embedding_size": 16, "embedding_multiplier": 1.0, "embedding_norm": False,
    "type_vocab_size": 0,
    "norm_placement": "pre", "final_norm": True, "rms_norm_adds_one": False, "position_offset": 0,
    "rope_interleaved": False, "partial_rotary_factor": 1.0, "rope_local_base_freq": None, "is_causal": True,
    "sliding_window": None, "layer_types": None, "attn_logit_softcapping": None,
    "final_logit_softcapping": None, "parallel_residual": False, "parallel_norm_is_shared": False,
    "lm_head_bias": False, "lm_head_transform": False, "num_experts": 0, "num_experts_per_tok": 2,
    "norm_topk_prob": True, "mlp_only_layers": [], "shared_expert_intermediate_size": 0,
    "shared_expert_is_gated": False, "router_aux_loss_coef": 0.0, "router_z_loss_coef": 0.0,
    "embedding_dropout": 0.0, "residual_dropout": 0.0, "attention_dropout": 0.0, "dropout_seed": 0,
}  # fmt: skip
_OPT = (
    _GPT2
    | _REST
    | {
        "model_type": "opt", "hidden_act": "relu", "embedding_size": 8, "position_offset": 2, "norm_placement": "post",
        "final_norm": False,
    }
)  # fmt: skip
_BERT = (
    _GPT2
    | _REST
    | {
        "model_type": "bert", "hidden_act": "gelu", "norm_placement": "post", "final_norm": False, "is_causal": False,
        "embedding_norm": True, "type_vocab_size": 2, "lm_head_bias": True, "lm_head_transform": True,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
    }
)  # fmt: skip
_GEMMA3 = (
    _LLAMA
    | _REST
    | {
        "model_type": "gemma3_text", "norm_placement": "sandwich", "rms_norm_adds_one": True, "qk_norm": True,
        "embedding_multiplier": 4.0, "hidden_act": "gelu_new", "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_local_base_freq": 10000.0, "sliding_window": 8, "query_pre_attn_scalar": 8.0,
        "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }
)  # fmt: skip
_GPTJ = (
    _GPT2
    | _REST
    | {
        "model_type": "gptj", "position_kind": "rotary", "rope_interleaved": True, "partial_rotary_factor": 0.5,
        "parallel_residual": True, "parallel_norm_is_shared": True, "attention_bias": False, "mlp_bias": True,
        "attention_output_bias": False, "lm_head_bias": True, "tie_word_embeddings": False,
        "padded_vocab_size": 80,
    }
)  # fmt: skip
_QWEN2_MOE = (
    _LLAMA
    | _REST
    | {
        "model_type": "qwen2_moe", "rope_scaling": None, "attention_bias": True, "num_experts": 4,
        "num_experts_per_tok": 2, "norm_topk_prob": False, "moe_intermediate_size": 24, "mlp_only_layers": [1],
        "shared_expert_intermediate_size": 40, "shared_expert_is_gated": True, "router_aux_loss_coef": 0.001,
    }
)  # fmt: skip
_CONFIGS = {
    "llama": _LLAMA, "gpt2": _GPT2, "qwen3": _QWEN3, "opt": _OPT, "bert": _BERT, "gemma3": _GEMMA3, "gptj": _GPTJ,
    "qwen2_moe": _QWEN2_MOE,
}  # fmt: skip


def parameter_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """Names and shapes of every trainable parameter of `config`, embeddings first, then block by block."""
    config = _REST | config
    hidden, width = config["hidden_size"], config["head_dim"]
    vocab, narrow = config["padded_vocab_size"], config["embedding_size"]
    shapes = {"embedding.weight": [vocab, narrow]}

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = [hidden]
        if config["norm_bias"]:
            shapes[f"{name}.bias"] = [hidden]

    def projection(name: str, out: int, into: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = [out, into]
        if bias:
            shapes[f"{name}.bias"] = [out]

    def feed_forward(name: str, inner: int, bias: bool, *stack: int) -> None:
        for part, out, into in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            if part != "gate" or config["gated_mlp"]:
                projection(f"{name}.{part}", out, into, bias)
                shapes[f"{name}.{part}.weight"] = [*stack, out, into]

    if narrow != hidden:
        projection("embedding_projection", hidden, narrow, False)
    if config["position_kind"] == "learned":
        rows = config["max_position_embeddings"] + config["position_offset"]
        shapes["position_embedding.weight"] = [rows, hidden]
    if config["type_vocab_size"]:
        shapes["token_type_embedding.weight"] = [config["type_vocab_size"], hidden]
    if config["embedding_norm"]:
        norm("embedding_norm")
    for number in range(config["num_hidden_layers"]):
        block, query = f"blocks.{number}", config["num_attention_heads"] * width
        key = config["num_key_value_heads"] * width
        norm(f"{block}.attention_norm")
        projection(f"{block}.attention.query", query, hidden, config["attention_bias"])
        projection(f"{block}.attention.key", key, hidden, config["attention_bias"])
        projection(f"{block}.attention.value", key, hidden, config["attention_bias"])
        projection(f"{block}.attention.output", hidden, query, config["attention_output_bias"])
        if config["qk_norm"]:
            shapes[f"{block}.attention.query_norm.weight"] = [width]
            shapes[f"{block}.attention.key_norm.weight"] = [width]
        if not config["parallel_norm_is_shared"]:
            norm(f"{block}.mlp_norm")
        if config["norm_placement"] == "sandwich":
            norm(f"{block}.attention_post_norm")
            norm(f"{block}.mlp_post_norm")
        if config["num_experts"] and number not in config["mlp_only_layers"]:
            shapes[f"{block}.mlp.router.weight"] = [config["num_experts"], hidden]
            feed_forward(f"{block}.mlp.experts", config["moe_intermediate_size"], False, config["num_experts"])
            if config["shared_expert_intermediate_size"]:
                feed_forward(f"{block}.mlp.shared_expert", config["shared_expert_intermediate_size"], False)
            if config["shared_expert_is_gated"]:
                shapes[f"{block}.mlp.shared_expert_gate.weight"] = [1, hidden]
        else:
            feed_forward(f"{block}.mlp", config["intermediate_size"], config["mlp_bias"])
    if config["final_norm"]:
        norm("norm")
    if narrow != hidden:
        projection("head_projection", narrow, hidden, False)
    if config["lm_head_transform"]:
        projection("lm_head_transform.dense", hidden, hidden, True)
        norm("lm_head_transform.norm")
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [vocab, narrow]
    if config["lm_head_bias"]:
        shapes["lm_head.bias"] = [vocab]
    return shapes


def write(folder: Path) -> None:
    """Writes `NAME/config.json`, `NAME/parameters.json` and `cache_rows.json`."""
    for name, config in _CONFIGS.items():
        inherited = {
            "moe_intermediate_size": config["intermediate_size"],
            "query_pre_attn_scalar": float(config["head_dim"]),
        }
        write_json(folder / name / "config.json", _REST | inherited | config)
        write_json(folder / name / "parameters.json", parameter_shapes(config))
    sizes = {"slots": 3, "num_key_value_heads": 2, "max_length": 32, "head_dim": 4}
    rows = [
        {"slot": slot, "head": head, "position": position, "row": (slot * 2 + head) * 32 + position}
        for slot, head, position in ((0, 0, 0), (0, 0, 31), (0, 1, 0), (1, 0, 5), (1, 1, 31), (2, 1, 31))
    ]
    names = [f"cache.{number}.{side}" for number in range(2) for side in ("key", "value")]
    write_json(folder / "cache_rows.json", sizes | {"shape": [3 * 2 * 32, 4], "parameters": names, "rows": rows})
