"""Fixtures: the contract's golden folder, its tokenizer, and datasets built from a few lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ms_dataprep
import pytest


@pytest.fixture(scope="session")
def contracts() -> Path:
    return Path(__file__).parents[3] / "integration_tests" / "contracts"


@pytest.fixture(scope="session")
def golden(contracts: Path) -> Path:
    return contracts / "dataset" / "golden"


@pytest.fixture(scope="session")
def tokenizer_path(golden: Path) -> Path:
    return golden / "int32" / "tokenizer.json"


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path: Path) -> ms_dataprep.Tokenizer:
    return ms_dataprep.load_tokenizer(tokenizer_path)


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[..., Path]:
    """Writes texts as JSON lines and returns the file."""

    def write(*texts: str, name: str = "text.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        return path

    return write


@pytest.fixture
def build_dataset(tmp_path: Path, tokenizer_path: Path, write_lines: Callable[..., Path]) -> Callable[..., Path]:
    """Builds a dataset of texts into a new folder and returns it."""

    def build(*texts: str, folder: str = "dataset", **options: Any) -> Path:
        config = ms_dataprep.DataConfig(**{"seq_length": 8, **options})
        ms_dataprep.build(
            [write_lines(*texts, name=f"{folder}.jsonl")], tmp_path / folder, tokenizer=tokenizer_path, config=config
        )
        return tmp_path / folder

    return build


@pytest.fixture(scope="session")
def eleven_rows(tmp_path_factory: pytest.TempPathFactory, tokenizer_path: Path) -> Path:
    """Eleven documents of one row each, in three shards."""
    folder = tmp_path_factory.mktemp("eleven")
    source = folder / "text.jsonl"
    source.write_text("".join(json.dumps({"text": f"{chr(97 + i)}xyz"}) + "\n" for i in range(11)), encoding="utf-8")
    config = ms_dataprep.DataConfig(seq_length=8, packing="one_per_row", shard_megabytes=70e-6)
    ms_dataprep.build([source], folder / "dataset", tokenizer=tokenizer_path, config=config)
    return folder / "dataset"
