from dataclasses import dataclass, replace

import numpy as np
import pytest
from ms_weightconv import convert
from ms_weightconv.alignment import table_moves
from ms_weightconv.contract import part_width
from ms_weightconv.errors import RuleError
from ms_weightconv.families import FAMILIES
from ms_weightconv.rules import Rule, Split, Tie, Transpose
from ms_weightconv.source import open_source


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

    def forward(self, arrays, config):
        return arrays[::-1]

    backward = forward

    def backward_shapes(self, shapes, config):
        return shapes[::-1]


@dataclass(frozen=True)
class Grouped:
    """Rows ordered per key/value group, as its queries, its key, its value; ours keeps the three apart."""

    def forward(self, arrays, config):
        groups, head = config["num_key_value_heads"], config["head_dim"]
        queries = config["num_attention_heads"] // groups
        parts = arrays[0].reshape(groups, queries + 2, head, -1)
        cut = (parts[:, :queries], parts[:, queries : queries + 1], parts[:, queries + 1 :])
        return [np.concatenate([part.reshape(-1, parts.shape[-1]) for part in cut])]

    def backward(self, arrays, config):
        groups, head = config["num_key_value_heads"], config["head_dim"]
        ends = np.cumsum([part_width(config, part) for part in ("query", "key")])
        parts = [part.reshape(groups, -1, head, arrays[0].shape[1]) for part in np.split(arrays[0], ends)]
        return [np.concatenate(parts, axis=1).reshape(arrays[0].shape)]

    def backward_shapes(self, shapes, config):
        return shapes


@dataclass(frozen=True)
class RotaryPairs:
    """Rows of each head with the two numbers of a rotary pair side by side; ours has them half a head apart."""

    def forward(self, arrays, config):
        half = config["head_dim"] // 2
        return [array.reshape(-1, half, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape) for array in arrays]

    def backward(self, arrays, config):
        half = config["head_dim"] // 2
        return [array.reshape(-1, 2, half, array.shape[1]).swapaxes(1, 2).reshape(array.shape) for array in arrays]

    def backward_shapes(self, shapes, config):
        return shapes


@dataclass(frozen=True)
class Stacked:
    """One tensor an expert; ours has them all in one."""

    def forward(self, arrays, config):
        return [np.stack(arrays)]

    def backward(self, arrays, config):
        return list(arrays[0])

    def backward_shapes(self, shapes, config):
        return [shapes[0][1:]] * shapes[0][0]


GPT2, LLAMA, QWEN3 = FAMILIES["gpt2"], FAMILIES["llama"], FAMILIES["qwen3"]
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
        edit_steps(GPT2, "c_attn.weight", (Transpose(), Grouped(), Split("query", "key", "value"))),
    ),
    "gpt2: norms exchanged": ("gpt2", swap(GPT2, "attention_norm", "mlp_norm")),
    "llama: gate and up exchanged": ("llama", swap(LLAMA, "mlp.gate", "mlp.up")),
    "llama: key and value exchanged": ("llama", swap(LLAMA, "attention.key", "attention.value")),
    "llama: output transposed": ("llama", edit_steps(LLAMA, "o_proj.weight", (Transpose(),))),
    "llama: rotary pairs in Meta's order": ("llama", edit_steps(LLAMA, "q_proj.weight", (RotaryPairs(),))),
    "qwen3: norms of query and key exchanged": ("qwen3", swap(QWEN3, "query_norm", "key_norm")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_table_does_not_pass_the_hand_written_layout(folders, monkeypatch, name):
    family, mutated = MUTATIONS[name]
    source = folders.huggingface(family)
    monkeypatch.setitem(FAMILIES, family, mutated)

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


@pytest.mark.parametrize("step", [Grouped(), RotaryPairs(), Stacked()])
def test_steps_of_later_families_are_lines_of_a_table_and_come_back(step):
    config = {
        "num_hidden_layers": 2, "num_experts": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "intermediate_size": 8,
    }  # fmt: skip
    parts = ("query", "key", "value")
    rule = {
        Grouped: Rule(
            "decoder.layers.{layer}.self_attention.linear_qkv.weight",
            tuple(f"blocks.{{layer}}.attention.{part}.weight" for part in parts),
            (Grouped(), Split(*parts)),
        ),
        RotaryPairs: Rule(
            "layers.{layer}.attention.wq.weight", "blocks.{layer}.attention.query.weight", (RotaryPairs(),)
        ),
        Stacked: Rule(
            "layers.{layer}.experts.{expert}.w1.weight", "blocks.{layer}.mlp.experts.gate.weight", (Stacked(),)
        ),
    }[type(step)]
    shapes = {
        "query": (16, 5), "key": (8, 5), "value": (8, 5), "gate": (3, 8, 5),
    }  # fmt: skip

    for move in rule.moves(config):
        ours = [shapes[name.split(".")[-2]] for name in move.ours]
        theirs = move.backward_shapes(ours, config)
        arrays = [np.random.default_rng(n).integers(0, 99, shape) for n, shape in enumerate(theirs)]
        forward = move.forward(arrays, config)
        back = move.backward(forward, config)
        assert [array.shape for array in forward] == ours
        assert len(move.theirs) == len(arrays) == len(back)
        assert all(np.array_equal(first, second) for first, second in zip(arrays, back, strict=True))
    assert len(list(rule.moves(config))) == 2


def test_a_grouped_projection_hands_each_group_its_own_rows():
    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 1}
    fused = np.array([[0], [1], [10], [20], [2], [3], [11], [21]])  # q0 q1 k0 v0 q2 q3 k1 v1

    query, key, value = Split("query", "key", "value").forward(Grouped().forward([fused], config), config)

    assert (query.ravel().tolist(), key.ravel().tolist(), value.ravel().tolist()) == ([0, 1, 2, 3], [10, 11], [20, 21])


def test_rules_read_as_lines():
    lines = [str(rule) for rule in GPT2.rules]

    assert any("c_attn.weight -> " in line and "[transpose, split query/key/value]" in line for line in lines)
    assert any(isinstance(rule, Tie) and "tied to embedding.weight" in str(rule) for rule in GPT2.rules)
