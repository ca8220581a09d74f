import json
from pathlib import Path

import pytest
from ms_dataprep import TokenizerConfig, load_tokenizer, train_tokenizer
from ms_dataprep.errors import SourceError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    texts = [f"the quick brown fox number {number} 世界 jumps" for number in range(300)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_the_same_text_gives_the_same_file_and_every_text_can_be_written(tmp_path: Path, source: Path) -> None:
    config = TokenizerConfig(vocab_size=310)

    first = train_tokenizer([source], tmp_path / "one" / "tokenizer.json", config)
    second = train_tokenizer([source], tmp_path / "two" / "tokenizer.json", config)

    assert first.path.read_bytes() == second.path.read_bytes()
    assert (first.vocab_size, first.eod_id, first.pad_id) == (310, 0, None)
    assert first.fingerprint == second.fingerprint == load_tokenizer(tmp_path / "one").fingerprint
    for text in ("the quick", "日本 👩‍🚀 \x01\n", "<|endoftext|>"):
        assert first.decode(first.encode(text)) == text
        assert first.eod_id not in first.encode(text)
    assert len(first.encode("the quick brown")) < len("the quick brown")


def test_its_own_end_of_document_token_is_found_again(tmp_path: Path, source: Path) -> None:
    train_tokenizer([source], tmp_path / "tokenizer.json", TokenizerConfig(vocab_size=300, eod_token="<END>"))

    assert load_tokenizer(tmp_path / "tokenizer.json").token(0) == "<END>"
    assert load_tokenizer(tmp_path / "tokenizer.json").eod_id == 0


def test_fewer_ids_than_asked_for_are_told(tmp_path: Path, source: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train_tokenizer([source], tmp_path / "tokenizer.json", TokenizerConfig(vocab_size=5000))

    assert tokenizer.vocab_size < 5000
    assert f"{tokenizer.vocab_size} ids, 5000 were asked for" in caplog.text


def test_text_without_a_document_is_refused_and_writes_nothing(tmp_path: Path, source: Path) -> None:
    with pytest.raises(SourceError, match="no readable document in 1 files; is the text under 'content'"):
        train_tokenizer([source], tmp_path / "out" / "tokenizer.json", TokenizerConfig(text_key="content"))

    assert not (tmp_path / "out").exists()
