"""A proposal of a table for a model that is no family here, from its tensors' names and shapes, for a user to confirm.

Names are recognized by the words that families use for the same thing; shapes then say whether a matrix is stored
`[in, out]`. The order inside a fused projection no shape can say: hence the confirmation, and a proof with logits.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ms_weightconv.errors import ConfigError
from ms_weightconv.families import FAMILIES
from ms_weightconv.family import Field
from ms_weightconv.parameters import Shape
from ms_weightconv.shards import read_json, read_weights
from ms_weightconv.tablefile import FORMAT, VERSION

_WORDS = (
    # what it is, what its name contains; the first line that fits counts
    ("DROP a buffer that is computed", r"rotary_emb|inv_freq|masked_bias|\b(attn|attention)\.bias$|position_ids"),
    ("attention.query_norm", r"\b(q_norm|q_layernorm|query_norm|q_ln)\b"),
    ("attention.key_norm", r"\b(k_norm|k_layernorm|key_norm|k_ln)\b"),
    ("position_embedding", r"\b(wpe|embed_positions|position_embeddings?|pos_embed\w*)\b"),
    ("embedding_norm", r"(embed\w*_?(layer)?norm|word_embeddings_layernorm)\b"),
    ("embedding", r"\b(wte|embed_tokens|word_embeddings?|tok_embeddings|embed_in|token_embedding\w*|embedding)\b"),
    ("mlp.router", r"(mlp|moe|ffn|block_sparse_moe)\.(gate|router)\.weight"),
    ("QKV", r"\b(qkv|qkv_proj|c_attn|query_key_value|wqkv|w_qkv|in_proj|linear_qkv|att_proj)\b"),
    ("GATE_UP", r"\b(gate_up_proj|w_gate_hidden|gate_up|wi|w13)\b"),
    ("attention.query", r"\b(q_proj|wq|query|q|to_q|linear_q|q_lin)\b"),
    ("attention.key", r"\b(k_proj|wk|key|k|to_k|linear_k|k_lin)\b"),
    ("attention.value", r"\b(v_proj|wv|value|v|to_v|linear_v|v_lin)\b"),
    ("mlp.gate", r"\b(gate_proj|w1|gating|gate|wi_0)\b"),
    ("mlp.up", r"\b(up_proj|w3|c_fc|fc1|fc_in|dense_h_to_4h|hidden|up|wi_1|lin1)\b"),
    ("mlp.down", r"\b(down_proj|w2|fc2|fc_out|dense_4h_to_h|linear_fc2|down|lin2)\b|(mlp|ffn)\.(c_proj|wo|out_proj)\b"),
    ("attention.output", r"\b(o_proj|wo|out_proj|c_proj|dense|to_out|linear_proj|out_lin|attn_out)\b"),
    ("attention_norm", r"\b(input_layernorm|ln_?1|att(entio)?n_norm|norm_?1|self_attn_layer_norm|ln_attn)\b"),
    ("mlp_norm", r"\b(post_attention_layernorm|pre_mlp_layernorm|ln_?2|(ffn?|mlp)_norm|norm_?2|ln_mlp)\b"),
    ("mlp_norm", r"\{layer\}\.final_layer_norm\b"),
    ("lm_head", r"\b(lm_head|embed_out|output_layer|output|head)\b"),
    ("norm", r"\b(norm|ln_f|final_layernorm|final_layer_norm|norm_out|norm_f|final_norm)\b"),
)  # fmt: skip
_NUMBER = re.compile(r"\.(\d+)(?=\.)")


def propose_table(folder: Path) -> dict[str, Any]:
    """Proposes a table for a Hugging Face folder.

    Returns:
        The content of a file that `read_table` reads once its user has confirmed it; `unresolved` names what was not
        understood.

    Raises:
        SourceError: the folder cannot be read.
        ConfigError: its config does not say the sizes.
    """
    config, tensors = read_json(folder / "config.json"), read_weights(folder).tensors
    like = _most_alike(config)
    lines = [line for line in FAMILIES[like].fields if isinstance(line, Field)]
    sizes = {key: value for line in lines for key, value in _read(line, config)}
    missing = [key for key in ("hidden_size", "num_hidden_layers", "num_attention_heads") if not sizes.get(key)]
    if missing:
        raise ConfigError(f"{folder / 'config.json'}: does not say {', '.join(missing)} in a known word")
    shapes = {_pattern(name): tensor.shape for name, tensor in tensors.items()}
    found = {pattern: _recognize(pattern) for pattern in shapes}
    rules, unresolved = [], []
    is_turned, has_experts = _stores_in_out(found, shapes, sizes), any("{expert}" in pattern for pattern in found)
    for pattern, ours in found.items():
        if ours is None:
            unresolved.append(f"{pattern} {list(shapes[pattern])}")
        elif ours.startswith("DROP "):
            rules.append({"theirs": pattern, "dropped_because": ours.removeprefix("DROP ")})
        else:
            rule = _rule(pattern, ours, shapes[pattern], is_turned)
            if has_experts and ".mlp." in ours:
                kinds = {"shared_expert": "shared_expert", "expert": "experts", "router": "experts"}
                rule["when"] = next((when for word, when in kinds.items() if word in ours), "not experts")
            rules.append(rule)
    return {
        "format": FORMAT,
        "version": VERSION,
        "confirmed": False,
        "name": str(config.get("model_type", folder.name)),
        "architecture": str((config.get("architectures") or [like])[0]),
        "prefix": _common_prefix(shapes),
        "like": like,
        "lifted": ["auto_map"] if "auto_map" in config else [],
        "constants": _constants(found),
        "rules": rules,
        "unresolved": unresolved,
    }


def _most_alike(config: Mapping[str, Any]) -> str:
    """The family whose config keys fit best; llama for a tie, its keys being the commonest."""
    scores = {
        name: sum(any(key in config for key in line.their_keys) for line in family.fields) / len(family.fields)
        for name, family in FAMILIES.items()
    }
    best = max(scores.values())
    return "llama" if scores["llama"] >= best - 1e-9 else max(scores, key=lambda name: scores[name])


def _read(line: Field, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    try:
        yield from line.read(config).items()
    except (KeyError, TypeError):
        return


def _pattern(name: str) -> str:
    """A name with its first number as the layer, its second one as the expert."""
    for word in ("{layer}", "{expert}"):
        name = _NUMBER.sub(f".{word}", name, count=1)
    return name


def _recognize(pattern: str) -> str | None:
    """The name in contract `model`, QKV or GATE_UP for fused ones, or DROP with a reason."""
    for ours, words in _WORDS:
        if not re.search(words, pattern):
            continue
        if ours.startswith("DROP "):
            return ours
        kind = pattern.rpartition(".")[2]
        if kind not in ("weight", "bias"):
            return None
        is_layer = "{layer}" in pattern
        if is_layer == (ours in ("embedding", "position_embedding", "embedding_norm", "lm_head", "norm")):
            continue
        if "{expert}" in pattern:
            ours = ours.replace("mlp.", "mlp.experts.")
        elif "shared_expert" in pattern:
            ours = ours.replace("mlp.", "mlp.shared_expert.")
        return f"blocks.{{layer}}.{ours}.{kind}" if is_layer else f"{ours}.{kind}"
    return None


def _stores_in_out(found: Mapping[str, str | None], shapes: Mapping[str, Shape], sizes: Mapping[str, Any]) -> bool:
    """Whether the matrices whose shape tells are stored `[in, out]`."""
    for pattern, ours in found.items():
        rows = shapes[pattern][0] if len(shapes[pattern]) == 2 else None
        if ours and rows and shapes[pattern][0] != shapes[pattern][1]:
            if "mlp.up.weight" in ours or "mlp.gate.weight" in ours or "QKV.weight" in ours:
                return bool(rows == sizes["hidden_size"])
            if "mlp.down.weight" in ours:
                return bool(rows != sizes["hidden_size"])
    return False


def _rule(pattern: str, ours: str, shape: Shape, is_turned: bool) -> dict[str, Any]:
    is_matrix = len(shape) == 2 and "{layer}" in pattern and "router" not in ours
    steps = ["transpose"] if is_turned and is_matrix else []
    names: str | list[str] = ours
    if "QKV" in ours:
        names = [ours.replace("QKV", f"attention.{part}") for part in ("query", "key", "value")]
        by_head = "query_key_value" in pattern or "linear_qkv" in pattern  # the words of those that group
        steps.append("ungroup query/key/value" if by_head else "split query/key/value")
    elif "GATE_UP" in ours:
        names = [ours.replace("GATE_UP", f"mlp.{part}") for part in ("gate", "up")]
        steps.append("split gate/up")
    elif "{expert}" in pattern:
        steps.append("stack experts")
    if ours == "lm_head.weight":
        return {"theirs": pattern, "ours": ours, "tied_to": "embedding.weight"}
    rule: dict[str, Any] = {"theirs": pattern, "ours": names}
    return rule | ({"steps": steps} if steps else {})


def _constants(found: Mapping[str, str | None]) -> dict[str, Any]:
    names = {name for name in found.values() if name}

    def has(end: str) -> bool:
        return any(name.endswith(end) for name in names)

    is_layer_norm = has("attention_norm.bias") or has("mlp_norm.bias")
    constants: dict[str, Any] = {
        "norm_kind": "layer_norm" if is_layer_norm else "rms_norm",
        "norm_bias": is_layer_norm,
        "position_kind": "learned" if has("position_embedding.weight") else "rotary",
        "gated_mlp": has(".gate.weight") or has("GATE_UP.weight"),
        "attention_bias": has("query.bias") or has("QKV.bias"),
        "attention_output_bias": has("output.bias"),
        "mlp_bias": has("mlp.up.bias") or has("GATE_UP.bias"),
        "qk_norm": has("query_norm.weight"),
    }
    return constants | ({"lm_head_bias": True} if "lm_head.bias" in names else {})


def _common_prefix(shapes: Mapping[str, Shape]) -> str:
    layers = [name for name in shapes if "{layer}" in name]
    return f"{layers[0].partition('.')[0]}." if layers and not layers[0].startswith(("layers.", "h.")) else ""
