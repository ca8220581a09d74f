import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ms_dataprep.errors import TokenizerError
from ms_dataprep.fingerprint import probe_strings
from ms_dataprep.tokenizer import Tokenizer, load_tokenizer
from ms_dataprep.tokenizer_comparison import compare_tokenizers


@pytest.fixture
def change(tmp_path: Path, tokenizer_path: Path) -> Callable[..., Path]:
    """Writes the golden tokenizer with a change and returns the file."""

    def write(edit: Callable[[dict[str, Any]], None], name: str = "tokenizer.json") -> Path:
        content = json.loads(tokenizer_path.read_text("utf-8"))
        edit(content)
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
        return tmp_path / name

    return write


def test_the_end_of_document_string_inside_a_text_is_only_text(tokenizer: Tokenizer) -> None:
    texts = ["<|endoftext|>", "a<|endoftext|>b", "the <|endoftext|>"]

    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert tokenizer.eod_id not in ids
        assert tokenizer.encode(text) == ids.tolist()
        assert tokenizer.decode(ids.tolist()) == text
    assert tokenizer.decode([tokenizer.eod_id]) == "<|endoftext|>"


def test_that_string_is_only_text_even_if_the_file_calls_it_no_special_token(change) -> None:
    path = change(lambda content: content["added_tokens"][0].update(special=False))

    loaded = load_tokenizer(path)

    assert loaded.eod_id not in loaded.encode("a<|endoftext|>b")


def test_an_added_token_that_is_not_special_is_still_a_token(change) -> None:
    def add_spaces(content: dict[str, Any]) -> None:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
        content["added_tokens"].append({"id": content["added_tokens"][0]["id"] + 1, "content": "    ", **flags})

    loaded = load_tokenizer(change(add_spaces))

    assert loaded.eod_id + 1 in loaded.encode("a    b")


def test_the_fingerprint_is_the_contracts_golden_one(golden: Path, tokenizer: Tokenizer) -> None:
    manifest = json.loads((golden / "int32" / "dataset.json").read_text())

    assert tokenizer.fingerprint == manifest["tokenizer"]["fingerprint"]
    assert tokenizer.vocab_size == manifest["vocab_size"]
    assert (tokenizer.eod_id, tokenizer.pad_id, tokenizer.bos_id) == (manifest["special_ids"]["eod"], None, None)


def test_probe_strings_are_the_contracts(contracts: Path) -> None:
    assert probe_strings() == json.loads((contracts / "dataset" / "probes.json").read_text("utf-8"))


def test_white_space_and_a_post_processor_do_not_change_the_fingerprint_but_a_merge_does(change, tokenizer) -> None:
    def add_truncation(content: dict[str, Any]) -> None:
        content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}

    def drop_merge(content: dict[str, Any]) -> None:
        content["model"]["merges"].pop()

    assert load_tokenizer(change(add_truncation)).fingerprint == tokenizer.fingerprint
    assert len(load_tokenizer(change(add_truncation)).encode("a b c d e f")) > 2
    assert load_tokenizer(change(drop_merge)).fingerprint != tokenizer.fingerprint


def test_a_tokenizer_without_an_end_of_document_token_is_refused_naming_the_option(change) -> None:
    path = change(lambda content: content["added_tokens"][0].update(content="<END>"))
    end = load_tokenizer(path, eod_token="<END>").eod_id

    with pytest.raises(TokenizerError, match="--eod-id"):
        load_tokenizer(path)
    assert load_tokenizer(path, eod_id=end).eod_id == end
    with pytest.raises(TokenizerError, match="the text '&' gives the end-of-document id 5"):
        load_tokenizer(path, eod_id=5)
    with pytest.raises(TokenizerError, match="eod_id 99999 is outside the vocabulary"):
        load_tokenizer(path, eod_id=99999)
    with pytest.raises(TokenizerError, match="'</s>' is not in its vocabulary"):
        load_tokenizer(path, eod_token="</s>")


def test_special_tokens_are_told_by_a_tokenizer_config_or_a_dataset_beside(change, tmp_path: Path) -> None:
    def add_tokens(content: dict[str, Any]) -> None:
        flags = {key: value for key, value in content["added_tokens"][0].items() if key not in ("id", "content")}
        first = content["added_tokens"][0]["id"]
        for number, name in enumerate(("<END>", "<BEGIN>", "[PAD]"), first + 1):
            content["added_tokens"].append({"id": number, "content": name, **flags})

    path = change(add_tokens)
    plain = load_tokenizer(path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<END>"}, "bos_token": "<BEGIN>"}')
    configured = load_tokenizer(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"special_ids": {"eod": plain.eod_id + 1}}))
    (tmp_path / "tokenizer_config.json").unlink()

    assert (plain.eod_id, plain.bos_id, plain.pad_id) == (plain.eod_id, None, plain.eod_id + 3)
    assert (configured.eod_id, configured.bos_id) == (plain.eod_id + 1, plain.eod_id + 2)
    assert load_tokenizer(path).eod_id == plain.eod_id + 1
    assert load_tokenizer(path, eod_id=plain.eod_id).eod_id == plain.eod_id


@pytest.mark.parametrize("unit", ["ab ", "the cat and\n", "。世\n", "世界。", "abc"])
def test_long_texts_have_the_ids_of_their_whole(tokenizer: Tokenizer, unit: str) -> None:
    text = unit * (200_000 // len(unit))

    whole = tokenizer._encode_piece(text)

    assert tokenizer.encode(text) == whole
    assert len(list(tokenizer._cut(text))) == (1 if unit in ("世界。", "abc") else 4)


@pytest.mark.parametrize("text", ["ab " * 700_000, "ab" * 1_000_000])
def test_megabytes_in_one_line_lose_nothing(tokenizer: Tokenizer, text: str) -> None:
    pieces = list(tokenizer._cut(text))

    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 1 << 18
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "no such tokenizer file"),
        ("bad.json", "{", "expected a tokenizer.json, found no JSON"),
        ("other.json", "{}", "expected a tokenizer.json with a model"),
        ("strange.json", '{"model": {"type": "Magic", "vocab": {}}}', "not a tokenizer that the tokenizers library"),
        ("spiece.model", "x", "not a SentencePiece model"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused_by_name(tmp_path: Path, name: str, content, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)

    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer(tmp_path / name)

    assert name in str(caught.value)


def test_a_vocabulary_whose_text_gives_the_end_id_is_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "END": 2, "[UNK]": 3}, "unk_token": "[UNK]"}
    content = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model}
    (tmp_path / "words.json").write_text(json.dumps(content))

    with pytest.raises(TokenizerError, match="text could end a document"):
        load_tokenizer(tmp_path / "words.json", eod_token="END")


def test_a_comparison_names_what_differs(change, tokenizer: Tokenizer, tokenizer_path: Path) -> None:
    other = load_tokenizer(change(lambda content: content["model"]["merges"].pop(0)))

    differences = compare_tokenizers(tokenizer, other, ["the cat"])

    assert compare_tokenizers(tokenizer, load_tokenizer(tokenizer_path), ["the cat"]) == []
    assert any("'the cat'" in difference for difference in differences)
