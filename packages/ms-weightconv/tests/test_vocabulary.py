"""Padding of the vocabulary: added with the true size kept, left out again, never part of a model."""

import json

import numpy as np
import pytest
from ms_weightconv import convert, prove
from ms_weightconv.errors import ConfigError, ProofError, WeightConvError

TABLES = ("embedding.weight", "lm_head.weight", "lm_head.bias")


@pytest.mark.parametrize("family", ["gpt2", "llama", "gptj", "bert"])  # tied and not, with a bias and without
@pytest.mark.parametrize("to", ["mindspore", "checkpoint"])
def test_rows_are_added_behind_the_last_id_and_left_out_bit_for_bit(folders, family, to):
    source, plain, padded, back = (folders.root / name for name in ("hf", "plain", "padded", "back"))
    convert(folders.huggingface(family), plain, to="mindspore", progress=False)

    convert(source, padded, to=to, pad_vocab_to_multiple_of=64, progress=False)
    convert(padded, back, to="huggingface", progress=False)

    folders.assert_same(source, back)
    assert folders.json(back / "config.json") == folders.json(source / "config.json")
    prove(source, padded, progress=False)
    prove(padded, plain, progress=False)
    if to == "mindspore":
        config, unpadded = folders.json(padded / "config.json"), folders.json(plain / "config.json")
        vocab_size = unpadded["vocab_size"]
        assert vocab_size % 64, "rows must be missing for this test to mean something"
        rows = -(-vocab_size // 64) * 64
        assert config == {**unpadded, "padded_vocab_size": rows}
        before, after = folders.read(plain), folders.read(padded)
        for name, (dtype, words) in before.items():
            assert after[name][0] == dtype
            np.testing.assert_array_equal(after[name][1][: len(words)], words)
            assert len(after[name][1]) == (rows if name in TABLES else len(words))
            assert not after[name][1][len(words) :].any()


def test_other_padding_replaces_the_first_and_one_takes_it_away(folders):
    first, second, third = (folders.root / name for name in ("first", "second", "third"))
    convert(folders.huggingface("llama"), first, to="mindspore", pad_vocab_to_multiple_of=64, progress=False)

    convert(first, second, to="mindspore", pad_vocab_to_multiple_of=100, progress=False)
    convert(second, third, to="mindspore", pad_vocab_to_multiple_of=1, progress=False)

    assert folders.json(second / "config.json")["padded_vocab_size"] % 100 == 0
    config = folders.json(third / "config.json")
    assert config["padded_vocab_size"] == config["vocab_size"]
    prove(folders.root / "hf", third, progress=False)


def test_a_changed_id_is_found_beneath_the_padding_and_changed_padding_is_not(folders):
    padded = folders.root / "padded"
    convert(folders.huggingface("llama"), padded, to="mindspore", pad_vocab_to_multiple_of=64, progress=False)
    vocab_size = folders.json(padded / "config.json")["vocab_size"]
    path = padded / "model.safetensors"
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    begin, end = header["embedding.weight"]["data_offsets"]
    row = (end - begin) // header["embedding.weight"]["shape"][0]

    data[start + begin + vocab_size * row] ^= 1
    path.write_bytes(data)
    prove(folders.root / "hf", padded, progress=False)

    data[start + begin + vocab_size * row - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ProofError, match=r"embedding\.weight"):
        prove(folders.root / "hf", padded, progress=False)


@pytest.mark.parametrize(
    ("to", "multiple", "message"),
    [
        ("huggingface", 64, "pad_vocab_to_multiple_of: found with to huggingface; only mindspore and checkpoint"),
        ("mindspore", 0, "pad_vocab_to_multiple_of: found 0, expected a whole number from 1"),
    ],
)
def test_impossible_padding_is_refused_before_anything_is_written(folders, to, multiple, message):
    source, target = folders.huggingface("llama"), folders.root / "target"

    with pytest.raises(ConfigError, match=message):
        convert(source, target, to=to, pad_vocab_to_multiple_of=multiple, progress=False)

    assert not target.exists()


def test_fewer_rows_than_ids_are_refused(folders):
    ours = folders.root / "ours"
    convert(folders.huggingface("llama"), ours, to="mindspore", progress=False)
    config = folders.json(ours / "config.json")
    (ours / "config.json").write_text(json.dumps({**config, "padded_vocab_size": 1}))

    with pytest.raises(WeightConvError, match="padded_vocab_size 1 is below vocab_size"):
        convert(ours, folders.root / "target", to="huggingface", progress=False)
