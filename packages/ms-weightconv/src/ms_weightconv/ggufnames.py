"""What llama.cpp calls things in GGUF: names of tensors, and the keys from which a config follows."""

from pathlib import Path
from typing import Any

from ms_weightconv.contract import Config, read_config
from ms_weightconv.errors import ConfigError
from ms_weightconv.families.lines import BLOCK
from ms_weightconv.family import Family
from ms_weightconv.gguffile import GgufContent
from ms_weightconv.rules import Drop, Rule, Tie
from ms_weightconv.steps import RotaryPairs, Step

_LAYER = "blk.{layer}"


def _table(name: str, rotary: tuple[Step, ...]) -> Family:
    attention, mlp = f"{BLOCK}.attention", f"{BLOCK}.mlp"
    return Family(
        name=name,
        architecture="GGUF",
        prefix="",
        rules=(
            Rule("token_embd.weight", "embedding.weight"),
            Rule(f"{_LAYER}.attn_norm.weight", f"{BLOCK}.attention_norm.weight"),
            Rule(f"{_LAYER}.attn_q.weight", f"{attention}.query.weight", rotary),
            Rule(f"{_LAYER}.attn_k.weight", f"{attention}.key.weight", rotary),
            Rule(f"{_LAYER}.attn_v.weight", f"{attention}.value.weight"),
            Rule(f"{_LAYER}.attn_q.bias", f"{attention}.query.bias", rotary, when="attention_bias"),
            Rule(f"{_LAYER}.attn_k.bias", f"{attention}.key.bias", rotary, when="attention_bias"),
            Rule(f"{_LAYER}.attn_v.bias", f"{attention}.value.bias", when="attention_bias"),
            Rule(f"{_LAYER}.attn_q_norm.weight", f"{attention}.query_norm.weight", when="qk_norm"),
            Rule(f"{_LAYER}.attn_k_norm.weight", f"{attention}.key_norm.weight", when="qk_norm"),
            Rule(f"{_LAYER}.attn_output.weight", f"{attention}.output.weight"),
            Rule(f"{_LAYER}.ffn_norm.weight", f"{BLOCK}.mlp_norm.weight"),
            Rule(f"{_LAYER}.ffn_gate.weight", f"{mlp}.gate.weight"),
            Rule(f"{_LAYER}.ffn_up.weight", f"{mlp}.up.weight"),
            Rule(f"{_LAYER}.ffn_down.weight", f"{mlp}.down.weight"),
            Rule("output_norm.weight", "norm.weight"),
            Tie("output.weight", "lm_head.weight", to="embedding.weight"),
            Drop("rope_freqs.weight", "computed from rope_scaling"),
        ),
        fields=(),
        constants={},
    )


GGUF_TABLES = {
    "llama": _table("llama", (RotaryPairs(),)),  # llama.cpp stores these in Meta's order
    "qwen2": _table("qwen2", ()),
    "qwen3": _table("qwen3", ()),
}
"""By `general.architecture`."""


def find_table(content: GgufContent, path: Path) -> Family:
    """The table of a file's architecture; raises ConfigError."""
    kind = content.metadata.get("general.architecture")
    if not isinstance(kind, str) or kind not in GGUF_TABLES:
        raise ConfigError(f"{path}: general.architecture {kind!r:.100}; GGUF is read for {', '.join(GGUF_TABLES)}")
    return GGUF_TABLES[kind]


def config_of(content: GgufContent, path: Path) -> Config:
    """The config of contract `model` that the metadata say; raises ConfigError where they do not say enough."""
    values, kind = content.metadata, str(content.metadata["general.architecture"])
    if "rope_freqs.weight" in content.tensors:
        raise ConfigError(f"{path}: rotary factors as a table (Llama 3.1); give the model's config.json (--config)")
    scaling = values.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        raise ConfigError(f"{path}: rotary scaling {scaling!r:.50}; give the model's config.json (--config)")
    wanted = {
        "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
        "num_attention_heads": "attention.head_count", "intermediate_size": "feed_forward_length",
        "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    }  # fmt: skip
    missing = [f"{kind}.{key}" for key in wanted.values() if f"{kind}.{key}" not in values]
    if missing or "token_embd.weight" not in content.tensors:
        raise ConfigError(f"{path}: missing {', '.join(missing) or 'token_embd.weight'}")
    ours: dict[str, Any] = {key: values[f"{kind}.{theirs}"] for key, theirs in wanted.items()}
    ours["rms_norm_eps"] = float(f"{ours['rms_norm_eps']:.7g}")  # stored as float32: 1e-5 and not 9.99999975e-06
    ours |= {
        "model_type": kind,
        "vocab_size": content.tensors["token_embd.weight"].shape[0],
        "num_key_value_heads": values.get(f"{kind}.attention.head_count_kv"),
        "head_dim": values.get(f"{kind}.attention.key_length"),
        "rope_theta": float(values.get(f"{kind}.rope.freq_base", 10000.0)),
        "tie_word_embeddings": "output.weight" not in content.tensors,
        "attention_bias": "blk.0.attn_q.bias" in content.tensors,
        "qk_norm": "blk.0.attn_q_norm.weight" in content.tensors,
    }
    for role, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        ours[f"{role}_token_id"] = values.get(f"tokenizer.ggml.{theirs}_token_id")
    return read_config(ours, str(path))
