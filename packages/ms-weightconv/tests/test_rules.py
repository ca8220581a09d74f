from dataclasses import dataclass, replace

import numpy as np
import pytest
from ms_weightconv import convert
from ms_weightconv.alignment import table_moves
from ms_weightconv.errors import RuleError
from ms_weightconv.families import FAMILIES
from ms_weightconv.rules import Rule, Tie
from ms_weightconv.source import open_source
from ms_weightconv.steps import RotaryPairs, Split, Stack, Transpose, Ungroup


def swap(family, first, second):
    """The table with two names of our side exchanged."""
    names = {first: second, second: first}

    def exchange(name):
        return next((name.replace(old, new) for old, new in names.items() if old in name), name)

    rules = tuple(
        replace(rule, ours=exchange(rule.ours) if isinstance(rule.ours, str) else tuple(map(exchange, rule.ours)))
        if isinstance(rule, Rule)
        else rule
        for rule in family.rules
    )
    return replace(family, rules=rules)


def edit_steps(family, theirs, steps):
    rules = tuple(
        replace(rule, steps=steps) if isinstance(rule, Rule) and theirs in rule.theirs else rule
        for rule in family.rules
    )
    return replace(family, rules=rules)


@dataclass(frozen=True)
class Turned:
    """Hands the parts on in the other order."""

    def forward(self, arrays, config, only=None):
        return arrays[::-1] if only is None else [arrays[::-1][only]]

    backward = forward

    def backward_shapes(self, shapes, config):
        return shapes[::-1]


@dataclass(frozen=True)
class Ungrouped(Ungroup):
    """Reads the rows as all queries, all keys, all values."""

    def forward(self, arrays, config, only=None):
        return Split("query", "key", "value").forward(arrays, config, only)


GPT2, LLAMA, QWEN3 = FAMILIES["gpt2"], FAMILIES["llama"], FAMILIES["qwen3"]
FALCON, BLOOM, PHI3, MIXTRAL = FAMILIES["falcon"], FAMILIES["bloom"], FAMILIES["phi3"], FAMILIES["mixtral"]
GEMMA2, OPT = FAMILIES["gemma2"], FAMILIES["opt"]
MUTATIONS = {
    "gpt2: query and key exchanged": ("gpt2", swap(GPT2, "attention.query", "attention.key")),
    "gpt2: attention not transposed": ("gpt2", edit_steps(GPT2, "attn.c_proj.weight", ())),
    "gpt2: fused weight not transposed": ("gpt2", edit_steps(GPT2, "c_attn.weight", (Split("query", "key", "value"),))),
    "gpt2: mlp not transposed": ("gpt2", edit_steps(GPT2, "mlp.c_fc.weight", ())),
    "gpt2: bias split otherwise than the weight": (
        "gpt2",
        edit_steps(GPT2, "c_attn.bias", (Split("query", "key", "value"), Turned())),
    ),
    "gpt2: fused weight cut per head": (
        "gpt2",
        edit_steps(GPT2, "c_attn.weight", (Transpose(), Ungroup())),
    ),
    "gpt2: norms exchanged": ("gpt2", swap(GPT2, "attention_norm", "mlp_norm")),
    "llama: gate and up exchanged": ("llama", swap(LLAMA, "mlp.gate", "mlp.up")),
    "llama: key and value exchanged": ("llama", swap(LLAMA, "attention.key", "attention.value")),
    "llama: output transposed": ("llama", edit_steps(LLAMA, "o_proj.weight", (Transpose(),))),
    "llama: rotary pairs in Meta's order": ("llama", edit_steps(LLAMA, "q_proj.weight", (RotaryPairs(),))),
    "falcon: groups of another size": ("falcon40", edit_steps(FALCON, "query_key_value.weight", (Ungrouped(),))),
    "bloom: fused projection cut into thirds": (
        "bloom",
        edit_steps(BLOOM, "query_key_value.weight", (Split("query", "key", "value"),)),
    ),
    "phi3: gate and up exchanged": ("phi3", swap(PHI3, "mlp.gate", "mlp.up")),
    "mixtral: up and down exchanged": ("mixtral", swap(MIXTRAL, "experts.gate", "experts.up")),
    "gemma2: norms before and after exchanged": ("gemma2", swap(GEMMA2, "mlp_norm", "mlp_post_norm")),
    "opt: norms exchanged": ("opt", swap(OPT, "attention_norm", "mlp_norm")),
    "qwen3: norms of query and key exchanged": ("qwen3", swap(QWEN3, "query_norm", "key_norm")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_table_does_not_pass_the_hand_written_layout(folders, monkeypatch, name):
    family, mutated = MUTATIONS[name]
    source = folders.huggingface(family)
    monkeypatch.setitem(FAMILIES, mutated.name, mutated)

    try:
        convert(source, folders.root / "ours", to="mindspore", progress=False)
    except RuleError:
        return  # shapes gave it away before anything was read
    assert folders.differences(source, folders.root / "ours")


def test_a_table_with_a_line_too_few_too_many_or_for_nothing_is_refused_with_all_names(folders):
    config = open_source(folders.huggingface("llama", attention_bias=False)).config
    first, second, *rest = LLAMA.rules
    double = Rule("model.norm.weight", "blocks.{layer}.mlp_norm.weight")
    idle = Rule("model.extra", "blocks.{layer}.attention.query.bias")
    mutated = replace(LLAMA, rules=(first, *rest, double, idle))

    with pytest.raises(RuleError) as error:
        table_moves(mutated, config, 100)
    for text in (
        "model.norm.weight: used 3 times",
        "blocks.0.mlp_norm.weight: produced 2 times",
        f"{second.ours.format(layer=1)}: produced by no rule",
        "blocks.1.attention.query.bias: produced, but no parameter",
    ):
        assert text in str(error.value)


@pytest.mark.parametrize("step", [Ungroup(), Split("query", "key", "value"), RotaryPairs(), Stack(), Transpose()])
def test_every_step_is_undone_by_its_way_back_whole_and_one_by_one(step):
    config = {
        "num_experts": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 8,
    }  # fmt: skip
    shapes = {Stack: [(3, 8, 5)], RotaryPairs: [(16, 5)], Transpose: [(16, 5)]}.get(
        type(step), [(16, 5), (8, 5), (8, 5)]
    )

    theirs = step.backward_shapes(shapes, config)
    arrays = [np.random.default_rng(n).integers(0, 99, shape) for n, shape in enumerate(theirs)]
    forward = step.forward(arrays, config)
    back = step.backward(forward, config)

    assert [array.shape for array in forward] == shapes
    assert [array.shape for array in back] == theirs
    assert all(np.array_equal(first, second) for first, second in zip(arrays, back, strict=True))
    assert all(np.array_equal(step.forward(arrays, config, n)[0], each) for n, each in enumerate(forward))
    assert all(np.array_equal(step.backward(forward, config, n)[0], each) for n, each in enumerate(back))


def test_a_grouped_projection_hands_each_group_its_own_rows():
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 1}
    fused = np.array([[0], [1], [10], [20], [2], [3], [11], [21]])  # q0 q1 k0 v0 q2 q3 k1 v1

    query, key, value = Ungroup().forward([fused], config)

    assert (query.ravel().tolist(), key.ravel().tolist(), value.ravel().tolist()) == ([0, 1, 2, 3], [10, 11], [20, 21])


def test_rules_read_as_lines():
    lines = [str(rule) for rule in GPT2.rules]

    assert any("c_attn.weight -> " in line and "[transpose, split query/key/value]" in line for line in lines)
    assert any(isinstance(rule, Tie) and "tied to embedding.weight" in str(rule) for rule in GPT2.rules)
