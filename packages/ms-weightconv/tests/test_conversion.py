import json
import os

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from ms_weightconv import convert, prove
from ms_weightconv.errors import ConfigError, RuleError, SourceError, TargetError, WeightConvError
from ms_weightconv.families import FAMILIES

ALL = [
    "gpt2", "llama", "llama3", "mistral", "qwen2", "qwen3", "gpt_neox", "gptj", "opt", "opt350", "bloom", "falcon",
    "falcon40", "falconold", "phi", "phi3", "gemma", "gemma2", "gemma3", "mixtral", "qwen2_moe", "qwen3_moe", "bert",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("family", ALL)
def test_a_model_comes_back_bit_for_bit_with_its_config_word_for_word(folders, family, dtype):
    name = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[dtype]
    key = "dtype" if "dtype" in folders.configs[family] else "torch_dtype"
    source = folders.huggingface(family, dtype=dtype, also={key: name})
    ours, back = folders.root / "ours", folders.root / "back"

    report = convert(source, ours, to="mindspore", progress=False)
    convert(ours, back, to="huggingface", progress=False)

    folders.assert_same(source, back)
    assert folders.json(back / "config.json") == folders.json(source / "config.json")
    assert report.num_tensors == len(folders.read(ours))
    assert report.casts == {}
    assert folders.differences(source, ours) == []
    prove(source, ours, progress=False)
    prove(source, back, progress=False)


@pytest.mark.parametrize("family", ALL)
def test_the_written_config_satisfies_the_contract(folders, contracts, family):
    source = folders.huggingface(family)

    convert(source, folders.root / "ours", to="mindspore", progress=False)

    schema = json.loads((contracts / "model" / "config.schema.json").read_text())
    written = folders.json(folders.root / "ours" / "config.json")
    assert set(written) == set(schema["properties"])
    Draft202012Validator(schema).validate(written)


@pytest.mark.parametrize("family", ALL)
def test_a_model_that_never_was_hugging_faces_survives_the_way_there_and_back(folders, family):
    source, ours, there, back = (folders.root / name for name in ("hf", "ours", "there", "back"))
    convert(folders.huggingface(family), ours, to="mindspore", progress=False)
    (ours / "huggingface.json").unlink()

    convert(ours, there, to="huggingface", progress=False)
    convert(there, back, to="mindspore", progress=False)

    folders.assert_same(ours, back)
    folders.assert_same(source, there)
    assert folders.json(ours / "config.json") == folders.json(back / "config.json")


def test_special_words_of_bfloat16_keep_their_bits(folders):
    special = np.array([0x3FC0, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0x7F81, 0xFFFF, 0x0001], "<u2")

    def change(tensors):
        tensors["model.norm.weight"] = ("BF16", np.concatenate([special, special]))

    source = folders.huggingface("llama", dtype="BF16", change=change)
    convert(source, folders.root / "ours", to="mindspore", progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)

    assert folders.read(folders.root / "ours")["norm.weight"][1].tolist() == [*special.tolist()] * 2
    folders.assert_same(source, folders.root / "back")


def test_tied_without_a_head_has_no_head_on_both_sides(folders):
    source = folders.huggingface("llama", tie_word_embeddings=True)

    convert(source, folders.root / "ours", to="mindspore", progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)

    assert "lm_head.weight" not in folders.read(folders.root / "ours")
    folders.assert_same(source, folders.root / "back")


def test_tied_with_an_equal_head_drops_it_and_says_so(folders):
    def change(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]

    source = folders.huggingface("llama", tie_word_embeddings=True, change=change)
    report = convert(source, folders.root / "ours", to="mindspore", progress=False)

    assert list(report.dropped) == ["lm_head.weight"]
    assert report.dropped["lm_head.weight"] == "equal to model.embed_tokens.weight"


def test_tied_with_a_different_head_is_refused(folders):
    def change(tensors):
        dtype, words = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = (dtype, words ^ np.uint32(1))

    source = folders.huggingface("llama", tie_word_embeddings=True, change=change)

    with pytest.raises(RuleError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        convert(source, folders.root / "ours", to="mindspore", progress=False)


def test_untied_without_a_head_is_refused(folders):
    source = folders.huggingface("llama", change=lambda tensors: tensors.pop("lm_head.weight"))

    with pytest.raises(RuleError, match=r"lm_head\.weight: missing"):
        convert(source, folders.root / "ours", to="mindspore", progress=False)


@pytest.mark.parametrize("family", ALL)
def test_renamed_extra_removed_and_reshaped_tensors_are_all_named_at_once(folders, family):
    first, second, third = [name for name in folders.random(family) if "1" in name][:3]

    def change(tensors):
        tensors[first + "x"] = tensors.pop(first)
        tensors["extra.weight"] = tensors[second]
        tensors[second] = (tensors[second][0], tensors[second][1][:-1])
        del tensors[third]

    source = folders.huggingface(family, change=change)

    with pytest.raises(RuleError) as error:
        convert(source, folders.root / "ours", to="mindspore", progress=False)
    for text in (f"{first}: missing", f"{first}x: not expected", "extra.weight: not expected", f"{third}: missing"):
        assert text in str(error.value)
    assert f"{second}: found shape" in str(error.value)
    assert [path.name for path in folders.root.iterdir()] == ["hf"]


def test_known_buffers_of_old_files_are_left_out_with_the_reason(folders):
    def change(tensors):
        tensors["transformer.h.0.attn.bias"] = ("BOOL", np.ones((1, 1, 32, 32), "|u1"))
        tensors["transformer.h.1.attn.masked_bias"] = ("F32", np.zeros((), "<u4"))

    report = convert(folders.huggingface("gpt2", change=change), folders.root / "ours", to="mindspore", progress=False)

    assert list(report.dropped) == ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]


def test_a_bare_model_without_its_prefix_is_read(folders):
    def change(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    source = folders.huggingface("gpt2", change=change)
    convert(source, folders.root / "ours", to="mindspore", progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)

    prove(source, folders.root / "back", progress=False)
    assert "transformer.h.0.ln_1.weight" in folders.read(folders.root / "back")


def test_more_layers_than_tensors_is_refused_before_names_are_made(folders):
    source = folders.huggingface("llama")
    config = folders.json(source / "config.json") | {"num_hidden_layers": 10**11}
    (source / "config.json").write_text(json.dumps(config))

    with pytest.raises(RuleError, match="num_hidden_layers is 100000000000"):
        convert(source, folders.root / "ours", to="mindspore", progress=False)


def test_shards_hold_what_one_file_holds(folders):
    source = folders.huggingface("llama")

    convert(source, folders.root / "sharded", to="huggingface", max_shard_size="5KB", progress=False)
    convert(folders.root / "sharded", folders.root / "whole", to="huggingface", progress=False)

    files = sorted(path.name for path in (folders.root / "sharded").glob("*.safetensors"))
    index = folders.json(folders.root / "sharded" / "model.safetensors.index.json")
    assert len(files) > 2
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(words.nbytes for _, words in folders.read(source).values())
    folders.assert_same(source, folders.root / "sharded")
    folders.assert_same(source, folders.root / "whole")


def test_a_cast_reports_overflow_underflow_and_rounding_by_tensor(folders):
    values = np.array([1.0, 70000.0, 1e-9, 1 / 3] * 4, "<f4")

    def change(tensors):
        for name, (dtype, words) in tensors.items():
            tensors[name] = (dtype, np.ones(words.shape, "<f4").view("<u4"))
        tensors["model.norm.weight"] = ("F32", values.view("<u4"))

    source = folders.huggingface("llama", change=change, torch_dtype="float32")
    report = convert(source, folders.root / "half", to="huggingface", dtype="fp16", progress=False)

    loss = report.casts["model.norm.weight"]
    assert (loss.num_overflowed, loss.num_underflowed, loss.num_rounded) == (4, 4, 12)
    assert sum(each.num_rounded for each in report.casts.values()) == 12
    assert folders.json(folders.root / "half" / "config.json")["torch_dtype"] == "float16"
    assert any("model.norm.weight" in line and "warning" in line for line in report.lines())
    assert prove(source, folders.root / "half", progress=False).casts["norm.weight"].num_overflowed == 4


def test_a_target_in_use_is_refused_and_replaced_only_by_a_complete_one(folders):
    source, target = folders.huggingface("llama"), folders.root / "ours"
    convert(source, target, to="mindspore", progress=False)
    (target / "mark").write_text("old")

    with pytest.raises(TargetError, match="in use"):
        convert(source, target, to="mindspore", progress=False)
    broken = folders.huggingface("llama", name="broken", change=lambda tensors: tensors.pop("model.norm.weight"))
    with pytest.raises(RuleError):
        convert(broken, target, to="mindspore", overwrite=True, progress=False)
    assert (target / "mark").exists()

    convert(source, target, to="mindspore", overwrite=True, progress=False)
    assert not (target / "mark").exists()
    assert sorted(path.name for path in folders.root.iterdir()) == ["broken", "hf", "ours"]


def test_a_folder_that_is_no_model_is_never_replaced(folders):
    source, target = folders.huggingface("llama"), folders.root / "home"
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")

    with pytest.raises(TargetError, match="not replaced"):
        convert(source, target, to="mindspore", overwrite=True, progress=False)
    with pytest.raises(TargetError, match="one inside the other"):
        convert(source, source / "inside", to="mindspore", progress=False)
    with pytest.raises(TargetError, match="same folder"):
        convert(source, source, to="mindspore", overwrite=True, progress=False)


def test_a_failed_write_leaves_nothing_behind(folders, monkeypatch):
    source = folders.huggingface("llama")
    original = os.preadv

    def read_other_bytes(descriptor, buffers, offset):
        count = original(descriptor, buffers, offset)
        buffers[0][0] ^= 1
        return count

    monkeypatch.setattr("ms_weightconv.transfer.os.preadv", read_other_bytes)

    with pytest.raises(TargetError, match="came back with other bytes"):
        convert(source, folders.root / "ours", to="mindspore", progress=False)
    assert [path.name for path in folders.root.iterdir()] == ["hf"]


def test_a_family_that_cannot_say_what_the_config_says_is_refused_with_every_key(folders):
    convert(folders.huggingface("qwen3"), folders.root / "ours", to="mindspore", progress=False)

    with pytest.raises(ConfigError, match=r"norm_kind.*position_kind.*qk_norm"):
        convert(folders.root / "ours", folders.root / "back", to="huggingface", family="gpt2", progress=False)


def test_llama_weights_can_be_written_as_mistral(folders):
    source = folders.huggingface("llama", attention_bias=False, mlp_bias=False)
    convert(source, folders.root / "ours", to="mindspore", progress=False)

    convert(folders.root / "ours", folders.root / "back", to="huggingface", family="mistral", progress=False)

    config = folders.json(folders.root / "back" / "config.json")
    assert (config["model_type"], config["sliding_window"]) == ("mistral", None)
    prove(source, folders.root / "back", progress=False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"to": "torch"}, "to: found 'torch'"),
        ({"to": "mindspore", "dtype": "int3"}, "dtype: found 'int3'"),
        ({"to": "mindspore", "max_shard_size": "5 apples"}, "max_shard_size: found '5 apples'"),
        ({"to": "mindspore", "family": "qwen2"}, "'llama', but family 'qwen2'"),
        ({"to": "mindspore", "family": "qwn2"}, "family 'qwn2' is not known; known: gpt2"),
        ({"to": "mindspore", "tokenizer": "nowhere"}, "nowhere: holds no tokenizer files"),
    ],
)
def test_impossible_arguments_are_refused_by_name(folders, arguments, text):
    source = folders.huggingface("llama")
    if "tokenizer" in arguments:
        arguments = arguments | {"tokenizer": folders.root / arguments["tokenizer"]}

    with pytest.raises(WeightConvError, match=text):
        convert(source, folders.root / "ours", progress=False, **arguments)
    assert [path.name for path in folders.root.iterdir()] == ["hf"]


def test_every_family_has_a_test_folder(folders):
    assert {config["model_type"] for config in folders.configs.values()} == set(FAMILIES)


def test_missing_source_is_refused(folders):
    with pytest.raises(SourceError, match="no such folder"):
        convert(folders.root / "nothing", folders.root / "ours", to="mindspore", progress=False)
