import json

import pytest
from click.testing import CliRunner
from ms_weightconv import convert, prove
from ms_weightconv.cli import main
from ms_weightconv.errors import ConfigError, RuleError
from ms_weightconv.inference import propose_table
from ms_weightconv.tablefile import STEPS, read_table

QWEN = {
    "format": "ms-weightconv.table", "version": 1, "name": "strange", "architecture": "StrangeForCausalLM",
    "prefix": "model.", "like": "qwen3", "constants": {"attention_bias": False},
    "rules": [
        {"theirs": "model.embed_tokens.weight", "ours": "embedding.weight"},
        {"theirs": "model.norm.weight", "ours": "norm.weight"},
        {"theirs": "lm_head.weight", "ours": "lm_head.weight", "tied_to": "embedding.weight"},
        {"theirs": "model.rotary", "dropped_because": "computed"},
    ] + [
        {"theirs": f"model.layers.{{layer}}.{theirs}.weight", "ours": f"blocks.{{layer}}.{ours}.weight"}
        for theirs, ours in {
            "input_layernorm": "attention_norm", "post_attention_layernorm": "mlp_norm",
            "self_attn.q_proj": "attention.query", "self_attn.k_proj": "attention.key",
            "self_attn.v_proj": "attention.value", "self_attn.o_proj": "attention.output",
            "self_attn.q_norm": "attention.query_norm", "self_attn.k_norm": "attention.key_norm",
            "mlp.gate_proj": "mlp.gate", "mlp.up_proj": "mlp.up", "mlp.down_proj": "mlp.down",
        }.items()
    ],
}  # fmt: skip


@pytest.fixture
def table(tmp_path):
    def write(**changes):
        path = tmp_path / "table.json"
        path.write_text(json.dumps(QWEN | changes))
        return path

    return write


def test_a_model_of_no_family_is_converted_by_a_table_of_its_user(folders, table):
    source = folders.huggingface("qwen3", model_type="strange")
    own = read_table(table())

    convert(source, folders.root / "ours", to="mindspore", family=own, progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", family=own, progress=False)

    folders.assert_same(source, folders.root / "back")
    assert folders.json(folders.root / "back" / "config.json") == folders.json(source / "config.json")
    assert folders.json(folders.root / "ours" / "config.json")["model_type"] == "strange"
    prove(source, folders.root / "ours", family=own, progress=False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format": "other"}, "format 'other' version 1"),
        ({"ruls": []}, "ruls: unknown key; did you mean rules"),
        ({"like": "mamba"}, "like: found 'mamba', expected one of gpt2"),
        ({"constants": {"qknorm": True}}, "qknorm: unknown key; did you mean qk_norm"),
        ({"rules": []}, "a list that is not empty"),
        ({"rules": ["x"]}, r"rules\[0\]: expected an object"),
        ({"rules": [{"theirs": "a", "ours": "b", "steps": ["turn"]}]}, "step 'turn', expected one of transpose"),
        ({"rules": [{"theirs": "a", "our": "b"}]}, "our: unknown key; did you mean ours"),
        ({"rules": [{"theirs": 3, "ours": "b"}]}, "theirs: expected a name or a list of names"),
        ({"confirmed": False}, "a proposal; look at every rule"),
        ({"unresolved": ["model.x"]}, r"unresolved: model\.x: give each a rule"),
        ({"name": ""}, "there must be a name"),
    ],
)
def test_a_table_with_a_mistake_is_refused_by_name(table, changes, text):
    with pytest.raises(ConfigError, match=text):
        read_table(table(**changes))


def test_a_table_with_a_rule_missing_or_an_impossible_condition_is_refused(folders, table):
    source = folders.huggingface("qwen3", model_type="strange")

    with pytest.raises(RuleError, match=r"table of strange: blocks\.0\.mlp\.down\.weight: produced by no rule"):
        convert(source, folders.root / "x", to="mindspore", family=read_table(table(rules=QWEN["rules"][:-1])))
    rules = [*QWEN["rules"], {"theirs": "a", "ours": "b", "when": "num_horses"}]
    with pytest.raises(RuleError, match="num_horses is no key"):
        convert(source, folders.root / "x", to="mindspore", family=read_table(table(rules=rules)))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gpt_neox", "phi3", "mixtral", "qwen3_moe"])
def test_a_proposal_for_an_unknown_model_is_right_where_names_and_shapes_tell(folders, family):
    source = folders.huggingface(family, model_type="strange")
    proposal = propose_table(source)

    path = folders.root / "proposed.json"
    path.write_text(json.dumps(proposal | {"confirmed": True}))
    convert(source, folders.root / "ours", to="mindspore", family=read_table(path), progress=False)

    assert proposal["unresolved"] == []
    assert proposal["confirmed"] is False
    known = folders.huggingface(family, name="known")
    convert(known, folders.root / "expected", to="mindspore", progress=False)
    folders.assert_same(folders.root / "expected", folders.root / "ours")


def test_the_command_proposes_and_wants_a_confirmation(folders):
    def change(tensors):
        tensors["model.layers.0.self_attn.secret"] = tensors["model.norm.weight"]

    source, target = folders.huggingface("qwen3", model_type="strange", change=change), folders.root / "out"
    arguments = ["convert", str(source), str(target), "--to", "mindspore"]

    refused = CliRunner().invoke(main, arguments)
    proposed = CliRunner().invoke(main, [*arguments, "--infer"])
    path = folders.root / "out.table.json"
    table = json.loads(path.read_text())

    assert "--infer" in refused.output
    assert proposed.exit_code == 0
    assert "not understood: model.layers.{layer}.self_attn.secret [16]" in proposed.output
    assert "unresolved" in CliRunner().invoke(main, [*arguments, "--table", str(path)]).output
    table["unresolved"] = []
    path.write_text(json.dumps(table))
    assert "set confirmed to true" in CliRunner().invoke(main, [*arguments, "--table", str(path)]).output
    rule = {"theirs": "model.layers.{layer}.self_attn.secret", "dropped_because": "a test"}
    path.write_text(json.dumps(table | {"confirmed": True, "rules": [*table["rules"], rule]}))
    done = CliRunner().invoke(main, [*arguments, "--table", str(path)])
    assert done.exit_code == 0, done.output
    assert "left out: model.layers.0.self_attn.secret (a test)" in done.output


def test_every_step_of_the_tables_can_be_named_in_a_file():
    assert all(str(step) for step in STEPS.values())
