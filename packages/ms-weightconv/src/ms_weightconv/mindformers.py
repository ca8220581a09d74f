"""MindFormers' names and layouts for the same networks, so that a model trained here can be served or tuned there.

Newer models ("mcore") fuse query, key and value by key/value head, and gate and up row by row in turn; options stack
them or keep all apart. Older ones ("wq") have Meta's names. The files stand beside a Hugging Face config.json, which
MindFormers reads, and `mindformers.json`, which says which of the layouts it is: shapes alone cannot tell.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ms_weightconv.errors import ConfigError, SourceError
from ms_weightconv.families.lines import BLOCK, QUERY_KEY_VALUE
from ms_weightconv.family import Family
from ms_weightconv.rules import Rule, Tie
from ms_weightconv.shards import read_json
from ms_weightconv.steps import GroupedExperts, Halves, Split, Ungroup

NAMING_FILE = "mindformers.json"
FORMAT, VERSION = "ms-weightconv.mindformers", 1
_LAYER = "decoder.layers.{layer}"
_OLD_LAYER = "model.layers.{layer}"
_SHARED = "shared_expert and gated_mlp"


def _both(theirs: str, ours: str, bias: str | None = None, when: str | None = None) -> tuple[Rule, ...]:
    """Weight and, under a condition, bias."""
    with_bias = " and ".join(part for part in (when, bias) if part)
    rules = (Rule(f"{theirs}.weight", f"{ours}.weight", when=when),)
    return rules if bias is None else (*rules, Rule(f"{theirs}.bias", f"{ours}.bias", when=with_bias))


def _fused_attention(theirs: str, step: Ungroup | Split) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            f"{theirs}.{kind}",
            tuple(f"{BLOCK}.attention.{part}.{kind}" for part in QUERY_KEY_VALUE),
            (step,),
            when=None if kind == "weight" else "attention_bias",
        )
        for kind in ("weight", "bias")
    )


def _fused_gate(theirs: str, ours: str, step: Halves, when: str, has_bias: bool) -> tuple[Rule, ...]:
    return tuple(
        Rule(
            f"{theirs}.{kind}",
            (f"{ours}.gate.{kind}", f"{ours}.up.{kind}"),
            (step,),
            when=when if kind == "weight" else f"{when} and mlp_bias",
        )
        for kind in (("weight", "bias") if has_bias else ("weight",))
    )


def _mcore(name: str, gate: Halves | None) -> Family:
    """Newer names; `gate` says how gate and up are fused, None keeps everything apart (inference networks)."""
    attention: tuple[Rule, ...]
    if gate is None:
        attention = tuple(
            rule
            for short, part in zip("qkv", QUERY_KEY_VALUE, strict=True)
            for rule in _both(f"{_LAYER}.self_attention.linear_{short}", f"{BLOCK}.attention.{part}", "attention_bias")
        )
        dense = (
            *_both(f"{_LAYER}.mlp.gating", f"{BLOCK}.mlp.gate", "mlp_bias", "not experts and gated_mlp"),
            *_both(f"{_LAYER}.mlp.hidden", f"{BLOCK}.mlp.up", "mlp_bias", "not experts and gated_mlp"),
        )
        shared = (
            *_both(f"{_LAYER}.mlp.shared_experts.gating", f"{BLOCK}.mlp.shared_expert.gate", None, _SHARED),
            *_both(f"{_LAYER}.mlp.shared_experts.hidden", f"{BLOCK}.mlp.shared_expert.up", None, _SHARED),
        )
    else:
        attention = _fused_attention(f"{_LAYER}.self_attention.linear_qkv", Ungroup())
        fc1 = f"{_LAYER}.mlp.linear_fc1"
        dense = _fused_gate(fc1, f"{BLOCK}.mlp", gate, "not experts and gated_mlp", has_bias=True)
        fc1 = f"{_LAYER}.mlp.shared_experts.linear_fc1"
        shared = _fused_gate(fc1, f"{BLOCK}.mlp.shared_expert", gate, _SHARED, has_bias=False)
    return Family(
        name=name,
        architecture="MindFormers",
        prefix="",
        rules=(
            Rule("embedding.word_embeddings.weight", "embedding.weight"),
            Rule("embedding.position_embeddings.weight", "position_embedding.weight", when="position_kind=learned"),
            *_both(f"{_LAYER}.input_layernorm", f"{BLOCK}.attention_norm", "norm_bias"),
            *attention,
            *_both(f"{_LAYER}.self_attention.q_layernorm", f"{BLOCK}.attention.query_norm", None, "qk_norm"),
            *_both(f"{_LAYER}.self_attention.k_layernorm", f"{BLOCK}.attention.key_norm", None, "qk_norm"),
            *_both(f"{_LAYER}.self_attention.linear_proj", f"{BLOCK}.attention.output", "attention_output_bias"),
            *_both(f"{_LAYER}.pre_mlp_layernorm", f"{BLOCK}.mlp_norm", "norm_bias", "not parallel_norm_is_shared"),
            *dense,
            *_both(f"{_LAYER}.mlp.linear_fc1", f"{BLOCK}.mlp.up", "mlp_bias", "not experts and not gated_mlp"),
            *_both(f"{_LAYER}.mlp.linear_fc2", f"{BLOCK}.mlp.down", "mlp_bias", "not experts"),
            Rule(f"{_LAYER}.mlp.router.weight", f"{BLOCK}.mlp.router.weight", when="experts"),
            Rule(
                f"{_LAYER}.mlp.experts.weight1",
                (f"{BLOCK}.mlp.experts.gate.weight", f"{BLOCK}.mlp.experts.up.weight"),
                (GroupedExperts(is_before_activation=True),),
                when="experts and gated_mlp",
            ),
            Rule(
                f"{_LAYER}.mlp.experts.weight2",
                f"{BLOCK}.mlp.experts.down.weight",
                (GroupedExperts(is_before_activation=False),),
                when="experts",
            ),
            *shared,
            *_both(f"{_LAYER}.mlp.shared_experts.linear_fc2", f"{BLOCK}.mlp.shared_expert.down", None, _SHARED),
            Rule(
                f"{_LAYER}.mlp.shared_experts.shared_experts_gate.weight",
                f"{BLOCK}.mlp.shared_expert_gate.weight",
                when="shared_expert and shared_expert_is_gated",
            ),
            *_both("decoder.final_layernorm", "norm", "norm_bias", "final_norm"),
            Tie("output_layer.weight", "lm_head.weight", to="embedding.weight"),
        ),
        fields=(),
        constants={},
    )


def _wq(name: str, *, is_fused: bool) -> Family:
    """Older names, with everything apart or with query, key, value and gate, up one behind the other."""
    attention, feed_forward = f"{_OLD_LAYER}.attention", f"{_OLD_LAYER}.feed_forward"
    if is_fused:
        rules = (
            *_fused_attention(f"{attention}.w_qkv", Split(*QUERY_KEY_VALUE)),
            *_fused_gate(f"{feed_forward}.w_gate_hidden", f"{BLOCK}.mlp", Halves(), "gated_mlp", has_bias=True),
        )
    else:
        rules = (
            *_both(f"{attention}.wq", f"{BLOCK}.attention.query", "attention_bias"),
            *_both(f"{attention}.wk", f"{BLOCK}.attention.key", "attention_bias"),
            *_both(f"{attention}.wv", f"{BLOCK}.attention.value", "attention_bias"),
            *_both(f"{feed_forward}.w1", f"{BLOCK}.mlp.gate", "mlp_bias"),
            *_both(f"{feed_forward}.w3", f"{BLOCK}.mlp.up", "mlp_bias"),
        )
    return Family(
        name=name,
        architecture="MindFormers",
        prefix="",
        rules=(
            Rule("model.tok_embeddings.embedding_weight", "embedding.weight"),
            *_both(f"{_OLD_LAYER}.attention_norm", f"{BLOCK}.attention_norm"),
            *rules,
            *_both(f"{attention}.wo", f"{BLOCK}.attention.output", "attention_output_bias"),
            *_both(f"{_OLD_LAYER}.ffn_norm", f"{BLOCK}.mlp_norm"),
            *_both(f"{feed_forward}.w2", f"{BLOCK}.mlp.down", "mlp_bias"),
            *_both("model.norm_out", "norm"),
            Tie("lm_head.weight", "lm_head.weight", to="embedding.weight"),
        ),
        fields=(),
        constants={},
    )


NAMINGS = {
    naming.name: naming
    for naming in (
        _mcore("mcore", Halves(is_interleaved=True)),
        _mcore("mcore-stacked", Halves()),
        _mcore("mcore-apart", None),
        _wq("wq", is_fused=False),
        _wq("wq-fused", is_fused=True),
    )
}
"""Tables by the name that `--naming` takes."""


def choose_naming(name: str) -> Family:
    """The table of a name; raises ConfigError."""
    if name not in NAMINGS:
        raise ConfigError(f"naming: found {name!r:.100}, expected one of {', '.join(NAMINGS)}")
    return NAMINGS[name]


def find_naming(tensors: Iterable[str], folder: Path, asked: str | None) -> Family | None:
    """The layout of a folder's tensors, or None if their names are not MindFormers'.

    Raises:
        ConfigError: there are several layouts with these names, and neither `asked` nor the folder says which it is.
        SourceError: the folder's `mindformers.json` is not one.
    """
    names = set(tensors)
    if "model.tok_embeddings.embedding_weight" in names:
        return NAMINGS["wq-fused" if any(".w_qkv." in name for name in names) else "wq"]
    if "embedding.word_embeddings.weight" not in names:
        return None
    if any(".self_attention.linear_q." in name for name in names):
        return NAMINGS["mcore-apart"]
    recorded = _recorded(folder)
    chosen = asked or recorded
    if chosen is None:
        raise ConfigError(
            f"{folder}: the rows of linear_fc1 stand in turn (MindFormers' default) or one half behind the other, "
            "which shapes do not tell; say --naming mcore or --naming mcore-stacked"
        )
    return choose_naming(chosen)


def naming_document(naming: Family) -> dict[str, Any]:
    """The content of `mindformers.json`."""
    return {"format": FORMAT, "version": VERSION, "naming": naming.name}


def _recorded(folder: Path) -> str | None:
    path = folder / NAMING_FILE
    if not path.exists():
        return None
    values = read_json(path)
    if (values.get("format"), values.get("version")) != (FORMAT, VERSION) or not isinstance(values.get("naming"), str):
        raise SourceError(f"{path}: expected format {FORMAT!r} version {VERSION} with a naming")
    return str(values["naming"])
