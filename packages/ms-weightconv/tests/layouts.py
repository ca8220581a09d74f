"""Contract `model`'s tensors of every family, written out by hand: nothing here comes from the package's tables."""

import re
from typing import Any

import numpy as np

# Renames: pieces of a foreign name and what stands for them, applied one after the other.
_LLAMA = {
    "model.layers.": "blocks.", "model.embed_tokens": "embedding", "model.norm": "norm", "self_attn.": "attention.",
    ".q_proj": ".query", ".k_proj": ".key", ".v_proj": ".value", ".o_proj": ".output", "q_norm": "query_norm",
    "k_norm": "key_norm", "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
    "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm",
}  # fmt: skip
_GEMMA = _LLAMA | {
    "post_attention_layernorm": "attention_post_norm", "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}  # fmt: skip
_FUSED = {
    "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm", "dense_h_to_4h": "up",
    "dense_4h_to_h": "down", "attention.dense": "attention.output",
}  # fmt: skip
RENAMES: dict[str, dict[str, str]] = {
    "llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA, "gemma": _LLAMA, "phi3": _LLAMA,
    "gemma2": _GEMMA, "gemma3_text": _GEMMA,
    "mixtral": _LLAMA | {"block_sparse_moe.gate.": "mlp.router.", "block_sparse_moe": "mlp",
                         "w1": "gate", "w2": "down", "w3": "up"},
    "qwen2_moe": {"mlp.gate.": "mlp.router."} | _LLAMA,
    "qwen3_moe": {"mlp.gate.": "mlp.router."} | _LLAMA,
    "gpt_neox": {"gpt_neox.layers.": "blocks.", "gpt_neox.embed_in": "embedding", "embed_out": "lm_head",
                 "gpt_neox.final_layer_norm": "norm"} | _FUSED,
    "bloom": {"transformer.h.": "blocks.", "transformer.word_embeddings_layernorm": "embedding_norm",
              "transformer.word_embeddings": "embedding", "transformer.ln_f": "norm",
              "self_attention": "attention"} | _FUSED,
    "falcon": {"transformer.h.": "blocks.", "transformer.word_embeddings": "embedding", "transformer.ln_f": "norm",
               "self_attention": "attention", "ln_attn": "attention_norm", "ln_mlp": "mlp_norm"} | _FUSED,
    "gptj": {"transformer.h.": "blocks.", "transformer.wte": "embedding", "transformer.ln_f": "norm",
             "ln_1": "attention_norm", "attn.": "attention.", ".q_proj": ".query", ".k_proj": ".key",
             ".v_proj": ".value", "out_proj": "output", "fc_in": "up", "fc_out": "down"},
    "opt": {"model.decoder.layers.": "blocks.", "model.decoder.embed_tokens": "embedding",
            "model.decoder.embed_positions": "position_embedding", "model.decoder.final_layer_norm": "norm",
            "model.decoder.project_in": "embedding_projection", "model.decoder.project_out": "head_projection",
            "self_attn_layer_norm": "attention_norm", "self_attn.": "attention.", "final_layer_norm": "mlp_norm",
            ".q_proj": ".query", ".k_proj": ".key", ".v_proj": ".value", "out_proj": "output", "fc1": "mlp.up",
            "fc2": "mlp.down"},
    "phi": {"model.layers.": "blocks.", "model.embed_tokens": "embedding", "model.final_layernorm": "norm",
            "input_layernorm": "attention_norm", "self_attn.": "attention.", ".q_proj": ".query", ".k_proj": ".key",
            ".v_proj": ".value", "attention.dense": "attention.output", "fc1": "up", "fc2": "down"},
    "bert": {"bert.encoder.layer.": "blocks.", "bert.embeddings.word_embeddings": "embedding",
             "bert.embeddings.position_embeddings": "position_embedding",
             "bert.embeddings.token_type_embeddings": "token_type_embedding",
             "bert.embeddings.LayerNorm": "embedding_norm", "attention.output.LayerNorm": "attention_norm",
             "attention.output.dense": "attention.output", "output.LayerNorm": "mlp_norm",
             "intermediate.dense": "mlp.up", "output.dense": "mlp.down", "attention.self.": "attention.",
             "cls.predictions.transform.dense": "lm_head_transform.dense",
             "cls.predictions.transform.LayerNorm": "lm_head_transform.norm", "cls.predictions.bias": "lm_head.bias"},
}  # fmt: skip


def expected_tensors(config: dict[str, Any], theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a converted folder must hold."""
    family = config["model_type"]
    if family == "gpt2":
        return _gpt2(config, theirs)
    ours: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, words in theirs.items():
        for old, new in RENAMES[family].items():
            name = name.replace(old, new)
        kind = name.rpartition(".")[2]
        if "query_key_value" in name or "qkv_proj" in name:
            block = name[: name.index("attention.")]
            for part, rows in zip(("query", "key", "value"), _cut(config, words), strict=True):
                ours[f"{block}attention.{part}.{kind}"] = rows
        elif "gate_up" in name:
            block, inner = name[: name.index("mlp.")], config["intermediate_size"]
            ours[f"{block}mlp.gate.weight"], ours[f"{block}mlp.up.weight"] = words[:inner], words[inner:]
        elif found := re.search(r"experts\.(\d+)\.", name):
            stacks.setdefault(name.replace(found[0], "experts."), {})[int(found[1])] = words
        else:
            ours[name] = words
    return ours | {name: np.array([rows[n] for n in range(len(rows))]) for name, rows in stacks.items()}


def _cut(config: dict[str, Any], fused: np.ndarray) -> list[np.ndarray]:
    """Query, key and value of a fused projection, row by row."""
    hidden, family = config["hidden_size"], config["model_type"]
    heads = config["n_head"] if family == "bloom" else config["num_attention_heads"]
    head = hidden // heads
    if family == "phi3":
        width = config["num_key_value_heads"] * head
        return [fused[:hidden], fused[hidden : hidden + width], fused[hidden + width :]]
    groups = heads
    if family == "falcon" and config["new_decoder_architecture"]:
        groups = config["num_kv_heads"]
    elif family == "falcon" and config["multi_query"]:
        groups = 1
    rows: dict[str, list[np.ndarray]] = {"query": [], "key": [], "value": []}
    at = 0
    for _ in range(groups):
        for part, count in (("query", heads // groups), ("key", 1), ("value", 1)):
            rows[part].append(fused[at : at + count * head])
            at += count * head
    return [np.concatenate(rows[part]) for part in ("query", "key", "value")]


def _gpt2(config: dict[str, Any], theirs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    hidden = config["n_embd"]
    ours = {
        "embedding.weight": theirs["transformer.wte.weight"],
        "position_embedding.weight": theirs["transformer.wpe.weight"],
    }
    for layer in range(config["n_layer"]):
        their, our = f"transformer.h.{layer}.", f"blocks.{layer}."
        for kind in ("weight", "bias"):
            ours[f"{our}attention_norm.{kind}"] = theirs[f"{their}ln_1.{kind}"]
            ours[f"{our}mlp_norm.{kind}"] = theirs[f"{their}ln_2.{kind}"]
            for number, part in enumerate(("query", "key", "value")):
                columns = slice(number * hidden, (number + 1) * hidden)
                ours[f"{our}attention.{part}.{kind}"] = theirs[f"{their}attn.c_attn.{kind}"][..., columns].T
            ours[f"{our}attention.output.{kind}"] = theirs[f"{their}attn.c_proj.{kind}"].T
            ours[f"{our}mlp.up.{kind}"] = theirs[f"{their}mlp.c_fc.{kind}"].T
            ours[f"{our}mlp.down.{kind}"] = theirs[f"{their}mlp.c_proj.{kind}"].T
    return ours | {f"norm.{kind}": theirs[f"transformer.ln_f.{kind}"] for kind in ("weight", "bias")}
