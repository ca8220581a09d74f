import json
import random
from pathlib import Path

import ms_dataprep
import pytest
import sentencepiece
from ms_dataprep import TokenizerConfig, load_tokenizer, train_tokenizer
from ms_dataprep.errors import TokenizerError
from ms_dataprep.tokenizer_comparison import compare_tokenizers

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dogs",
    "春天",
    "来了",
    "山上",
    "树木",
    "小河",
    "流水",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    choose = random.Random(0).choices
    texts = ["".join(word + " " * word.isascii() for word in choose(WORDS, k=20)) for _ in range(300)]
    path.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts), "utf-8")
    return path


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def model(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param) / "tokenizer.model"
    train_tokenizer([source], path, TokenizerConfig(kind=request.param, vocab_size=330))
    return path


def test_ids_are_the_librarys_and_every_text_comes_back(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    inner = sentencepiece.SentencePieceProcessor(model_file=str(model))

    for text in ("the quick 春天来了", "  two  spaces\tand\n\nlines ", "日本 👩‍🚀 \x01", "</s> <unk> <0x41>", ""):
        assert tokenizer.encode(text) == inner.encode(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert not {tokenizer.eod_id, tokenizer.bos_id} & set(tokenizer.encode(text))
    assert tokenizer.decode([*tokenizer.encode("a"), tokenizer.eod_id]).endswith("</s>")
    assert tokenizer.kind == "sentencepiece"


def test_a_dataset_of_it_says_so_and_carries_the_model(model: Path, source: Path, tmp_path: Path) -> None:
    config = ms_dataprep.DataConfig(seq_length=64, add_bos=True)

    manifest = ms_dataprep.build([source], tmp_path / "out", tokenizer=model, config=config, progress=False)

    assert manifest.tokenizer["file"] == "tokenizer.model"
    assert (tmp_path / "out" / "tokenizer.model").read_bytes() == model.read_bytes()
    assert ms_dataprep.verify(tmp_path / "out").document_ends == 300
    again = load_tokenizer(tmp_path / "out")
    assert again.fingerprint == manifest.fingerprint == load_tokenizer(model).fingerprint
    row = next(iter(ms_dataprep.load(tmp_path / "out", batch_size=1, evaluation=True)))["input_ids"][0]
    assert row[0] == manifest.special_ids.bos


def test_two_models_differ_by_fingerprint_and_by_ids(model: Path, source: Path, tmp_path: Path) -> None:
    other = train_tokenizer([source], tmp_path / "other.model", TokenizerConfig(kind="bpe", vocab_size=300))
    one = load_tokenizer(model)

    differences = compare_tokenizers(one, other, ["the quick brown fox"])

    assert one.fingerprint != other.fingerprint
    assert differences[0] == "vocab_size: 330 and 300"
    assert compare_tokenizers(one, load_tokenizer(model)) == []


def test_a_model_that_cannot_end_a_document_is_refused(source: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(WORDS * 30))
    sentencepiece.SentencePieceTrainer.train(
        input=str(lines), model_prefix=str(tmp_path / "none"), vocab_size=80, eos_id=-1, minloglevel=2,
        hard_vocab_limit=False,
    )  # fmt: skip

    with pytest.raises(TokenizerError, match=r"none\.model: no end-of-sentence piece.*--eod-id"):
        load_tokenizer(tmp_path / "none.model")
    assert load_tokenizer(tmp_path / "none.model", eod_token="<s>").eod_id == 1
    with pytest.raises(TokenizerError, match="eod_token '<nothing>' is not in its vocabulary"):
        load_tokenizer(tmp_path / "none.model", eod_token="<nothing>")
    with pytest.raises(TokenizerError, match="outside the vocabulary"):
        load_tokenizer(tmp_path / "none.model", eod_id=5000)


def test_too_many_ids_for_the_text_are_refused_in_one_line(source: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="SentencePiece cannot train 9000 ids on this text") as caught:
        train_tokenizer([source], tmp_path / "big.model", TokenizerConfig(kind="bpe", vocab_size=9000))

    assert "\n" not in str(caught.value)
    assert not (tmp_path / "big.model").exists()
