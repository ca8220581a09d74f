import json

import pytest
from ms_weightconv import convert
from ms_weightconv.errors import SourceError


def tokenizer(vocab, special=((2, "<|end|>"),)):
    return json.dumps({
        "version": "1.0",
        "added_tokens": [{"id": number, "content": token, "special": True} for number, token in special],
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })  # fmt: skip


def test_tokenizer_files_of_the_source_go_there_and_back(folders):
    source = folders.huggingface("llama")
    (source / "tokenizer.json").write_text(tokenizer({"a": 0, "b": 1}))
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "X"}')
    (source / "chat_template.jinja").write_text("{{ messages }}")

    convert(source, folders.root / "ours", to="mindspore", progress=False)
    convert(folders.root / "ours", folders.root / "back", to="huggingface", progress=False)

    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folders.root / "back" / name).read_bytes() == (source / name).read_bytes()


def test_a_given_tokenizer_gets_the_config_that_transformers_asks_for(folders):
    source, file = folders.huggingface("llama", eos_token_id=[2, 1]), folders.root / "my.json"
    file.write_text(tokenizer({"a": 0, "b": 1}))

    report = convert(source, folders.root / "back", to="huggingface", tokenizer=file, progress=False)

    config = folders.json(folders.root / "back" / "tokenizer_config.json")
    assert (config["eos_token"], config["bos_token"], config["model_max_length"]) == ("<|end|>", "b", 64)
    assert "pad_token" not in config
    assert report.notes == ()


def test_a_tokenizer_of_another_model_is_refused(folders):
    source, file = folders.huggingface("llama"), folders.root / "tokenizer.json"
    file.write_text(tokenizer({"a": 0, "z": 40}))

    with pytest.raises(SourceError, match="ids up to 40, the model's vocab_size is 40"):
        convert(source, folders.root / "back", to="huggingface", tokenizer=file, progress=False)
    assert not (folders.root / "back").exists()


def test_a_unigram_tokenizer_is_understood_and_a_broken_one_refused(folders):
    source, file = folders.huggingface("llama"), folders.root / "tokenizer.json"
    file.write_text(json.dumps({"model": {"type": "Unigram", "vocab": [["<s>", 0.0], ["</s>", 0.0], ["a", -1.0]]}}))
    convert(source, folders.root / "back", to="huggingface", tokenizer=folders.root, progress=False)
    assert folders.json(folders.root / "back" / "tokenizer_config.json")["bos_token"] == "</s>"

    file.write_text(json.dumps({"model": {"vocab": {"a": "x"}}}))
    with pytest.raises(SourceError, match="not as the tokenizers library writes it"):
        convert(source, folders.root / "again", to="huggingface", tokenizer=file, progress=False)


def test_a_model_without_a_tokenizer_says_so(folders):
    report = convert(folders.huggingface("llama"), folders.root / "back", to="huggingface", progress=False)

    assert report.notes == ("no tokenizer files in the source",)
