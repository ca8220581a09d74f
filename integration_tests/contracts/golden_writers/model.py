"""Golden files of contract `model`: three configs with every key, their parameters, and rows of the cache."""

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


def parameter_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    """Names and shapes of every trainable parameter of `config`, embeddings first, then block by block."""
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    shapes = {"embedding.weight": [config["vocab_size"], hidden]}
    if config["position_kind"] == "learned":
        shapes["position_embedding.weight"] = [config["max_position_embeddings"], hidden]

    def norm(name: str) -> None:
        shapes[f"{name}.weight"] = [hidden]
        if config["norm_bias"]:
            shapes[f"{name}.bias"] = [hidden]

    def projection(name: str, out: int, into: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = [out, into]
        if bias:
            shapes[f"{name}.bias"] = [out]

    for number in range(config["num_hidden_layers"]):
        block = f"blocks.{number}"
        norm(f"{block}.attention_norm")
        projection(f"{block}.attention.query", query, hidden, config["attention_bias"])
        projection(f"{block}.attention.key", key, hidden, config["attention_bias"])
        projection(f"{block}.attention.value", key, hidden, config["attention_bias"])
        projection(f"{block}.attention.output", hidden, query, config["attention_output_bias"])
        if config["qk_norm"]:
            shapes[f"{block}.attention.query_norm.weight"] = [width]
            shapes[f"{block}.attention.key_norm.weight"] = [width]
        norm(f"{block}.mlp_norm")
        if config["gated_mlp"]:
            projection(f"{block}.mlp.gate", inner, hidden, config["mlp_bias"])
        projection(f"{block}.mlp.up", inner, hidden, config["mlp_bias"])
        projection(f"{block}.mlp.down", hidden, inner, config["mlp_bias"])
    norm("norm")
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [config["vocab_size"], hidden]
    return shapes


def write(folder: Path) -> None:
    """Writes `NAME/config.json`, `NAME/parameters.json` and `cache_rows.json`."""
    for name, config in {"llama": _LLAMA, "gpt2": _GPT2, "qwen3": _QWEN3}.items():
        write_json(folder / name / "config.json", config)
        write_json(folder / name / "parameters.json", parameter_shapes(config))
    sizes = {"slots": 3, "num_key_value_heads": 2, "max_length": 32, "head_dim": 4}
    rows = [
        {"slot": slot, "head": head, "position": position, "row": (slot * 2 + head) * 32 + position}
        for slot, head, position in ((0, 0, 0), (0, 0, 31), (0, 1, 0), (1, 0, 5), (1, 1, 31), (2, 1, 31))
    ]
    names = [f"cache.{number}.{side}" for number in range(2) for side in ("key", "value")]
    write_json(folder / "cache_rows.json", sizes | {"shape": [3 * 2 * 32, 4], "parameters": names, "rows": rows})
