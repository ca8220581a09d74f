import json

import numpy as np
import pytest
from ms_weightconv import convert, prove
from ms_weightconv.ckptfile import read_ckpt_file
from ms_weightconv.errors import ConfigError, ProofError, RuleError

MCORE = ("mcore", "mcore-stacked", "mcore-apart")
CASES = [
    (family, naming)
    for family in ("llama", "llama3", "qwen3", "gpt2", "gpt_neox", "mixtral", "qwen2_moe", "qwen3_moe")
    for naming in MCORE
] + [(family, naming) for family in ("llama", "qwen2") for naming in ("wq", "wq-fused")]


@pytest.mark.parametrize(("family", "naming"), CASES)
def test_every_layout_comes_back_bit_for_bit_and_is_proven(folders, family, naming):
    source, there, back = folders.huggingface(family), folders.root / "there", folders.root / "back"

    convert(source, there, to="mindformers", naming=naming, progress=False)
    convert(there, back, to="huggingface", progress=False)

    folders.assert_same(source, back)
    assert folders.json(back / "config.json") == folders.json(source / "config.json")
    assert folders.json(there / "config.json") == folders.json(source / "config.json")
    prove(source, there, progress=False)


def words(folders, path, name):
    return folders.read(path)[name][1]


def test_the_newer_layouts_are_those_written_out_by_hand(folders):
    source = folders.huggingface("llama")
    theirs = {name: tensor for name, (_, tensor) in folders.read(source).items()}
    query, key, value = (theirs[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv")
    gate, up = (theirs[f"model.layers.1.mlp.{part}_proj.weight"] for part in ("gate", "up"))

    for naming in MCORE:
        convert(source, folders.root / naming, to="mindformers", naming=naming, progress=False)

    # two key/value heads of width 4, four query heads: queries 0 and 1 belong to the first
    grouped = np.concatenate([query[:8], key[:4], value[:4], query[8:], key[4:], value[4:]])
    layer = "decoder.layers.1"
    for naming in ("mcore", "mcore-stacked"):
        assert np.array_equal(
            words(folders, folders.root / naming, f"{layer}.self_attention.linear_qkv.weight"), grouped
        )
    turns = np.array([row for pair in zip(gate, up, strict=True) for row in pair])
    assert np.array_equal(words(folders, folders.root / "mcore", f"{layer}.mlp.linear_fc1.weight"), turns)
    stacked = words(folders, folders.root / "mcore-stacked", f"{layer}.mlp.linear_fc1.weight")
    assert np.array_equal(stacked, np.concatenate([gate, up]))
    apart = folders.root / "mcore-apart"
    assert np.array_equal(words(folders, apart, f"{layer}.self_attention.linear_v.weight"), value)
    assert np.array_equal(words(folders, apart, f"{layer}.mlp.hidden.weight"), up)
    assert np.array_equal(words(folders, apart, "output_layer.weight"), theirs["lm_head.weight"])


def test_grouped_experts_are_those_written_out_by_hand(folders):
    source = folders.huggingface("mixtral")
    theirs = {name: tensor for name, (_, tensor) in folders.read(source).items()}

    convert(source, folders.root / "there", to="mindformers", progress=False)

    first = words(folders, folders.root / "there", "decoder.layers.0.mlp.experts.weight1")
    second = words(folders, folders.root / "there", "decoder.layers.0.mlp.experts.weight2")
    assert (first.shape, second.shape) == ((16, 4 * 2 * 24), (4 * 24, 16))
    by_expert = first.reshape(4, 16, 48)  # as MindFormers reshapes it before the grouped product
    for expert in range(4):
        gate, down, up = (
            theirs[f"model.layers.0.block_sparse_moe.experts.{expert}.w{part}.weight"] for part in (1, 2, 3)
        )
        assert np.array_equal(by_expert[expert], np.concatenate([gate.T, up.T], axis=1))
        assert np.array_equal(second.reshape(4, 24, 16)[expert], down.T)


def test_the_older_layouts_are_those_written_out_by_hand(folders):
    source = folders.huggingface("qwen2")
    theirs = {name: tensor for name, (_, tensor) in folders.read(source).items()}

    convert(source, folders.root / "wq", to="mindformers", naming="wq", file_format="ckpt", progress=False)
    convert(source, folders.root / "fused", to="mindformers", naming="wq-fused", progress=False)

    tensors, _ = read_ckpt_file(folders.root / "wq" / "model.ckpt")
    names = {
        "model.tok_embeddings.embedding_weight": "model.embed_tokens.weight",
        "model.layers.0.attention.wk.bias": "model.layers.0.self_attn.k_proj.bias",
        "model.layers.1.feed_forward.w1.weight": "model.layers.1.mlp.gate_proj.weight",
        "model.layers.1.feed_forward.w2.weight": "model.layers.1.mlp.down_proj.weight",
        "model.layers.1.ffn_norm.weight": "model.layers.1.post_attention_layernorm.weight",
        "model.norm_out.weight": "model.norm.weight",
    }
    for ours, name in names.items():
        assert np.array_equal(tensors[ours].read(), theirs[name]), ours
    fused = [theirs[f"model.layers.0.self_attn.{part}_proj.bias"] for part in "qkv"]
    found = words(folders, folders.root / "fused", "model.layers.0.attention.w_qkv.bias")
    assert np.array_equal(found, np.concatenate(fused))
    assert "lm_head.weight" not in tensors


def test_a_layout_that_shapes_cannot_tell_must_be_named_and_a_wrong_name_is_no_proof(folders):
    source, there = folders.huggingface("llama"), folders.root / "there"
    convert(source, there, to="mindformers", naming="mcore-stacked", progress=False)
    (there / "mindformers.json").unlink()

    with pytest.raises(ConfigError, match="say --naming mcore or --naming mcore-stacked"):
        prove(source, there, progress=False)
    with pytest.raises(ProofError, match=r"blocks\.0\.mlp\.gate\.weight"):
        prove(source, there, naming="mcore", progress=False)
    prove(source, there, naming="mcore-stacked", progress=False)


def test_what_mindformers_has_no_name_for_is_refused_with_all_names(folders):
    source = folders.huggingface("gemma2")

    with pytest.raises(RuleError, match=r"table of mcore: blocks\.0\.attention_post_norm\.weight: produced by no rule"):
        convert(source, folders.root / "there", to="mindformers", progress=False)
    with pytest.raises(ConfigError, match="naming: found 'megatron', expected one of mcore"):
        convert(folders.huggingface("llama", name="b"), folders.root / "c", to="mindformers", naming="megatron")


def test_a_trained_checkpoint_can_be_handed_to_mindformers(folders):
    source, checkpoint = folders.huggingface("llama"), folders.root / "run"
    convert(source, checkpoint, to="checkpoint", progress=False)

    convert(checkpoint, folders.root / "there", to="mindformers", progress=False)

    prove(source, folders.root / "there", progress=False)
    assert json.loads((folders.root / "there" / "mindformers.json").read_text())["naming"] == "mcore"
