import json
import logging
import random
import sys
from pathlib import Path

import ms_dataprep
import numpy as np
import pytest
from ms_dataprep import TokenizerConfig, load_tokenizer, train_tokenizer
from ms_dataprep.errors import TokenizerError
from ms_dataprep.rows import Rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    text = " ".join(random.Random(0).choices(Path(random.__file__).read_text("utf-8").split(), k=20_000))
    (folder / "text.txt").write_text(text + "春天来了，山上的树木都换上了新的衣裳。" * 20, "utf-8")
    train_tokenizer([folder / "text.txt"], folder / "tokenizer.json", TokenizerConfig(vocab_size=1000))
    return folder


def test_the_fast_backend_gives_the_references_ids_special_strings_included(trained: Path) -> None:
    fast, reference = (load_tokenizer(trained, backend=name) for name in ("fast", "reference"))
    texts = [
        *Path(json.__file__).parent.joinpath("decoder.py").read_text("utf-8").split("\n\n"),
        "a<|endoftext|>b", "", "中文没有空格，标点。也有！", "👩‍🚀\x01\u200b", " " * 99 + "\n" * 9,
    ]  # fmt: skip

    assert (fast.backend, reference.backend) == ("fast", "reference")
    for one, two in zip(fast.encode_batch(texts), reference.encode_batch(texts), strict=True):
        assert one.tolist() == two.tolist()
        assert one.dtype == np.int32


def test_datasets_of_both_backends_hold_the_same_rows(trained: Path, tmp_path: Path) -> None:
    rows = {}
    for backend in ("fast", "reference"):
        config = ms_dataprep.DataConfig(seq_length=128, tokenizer_backend=backend)
        source = [trained / "text.txt", Path(json.__file__).parent / "decoder.py"][:1]
        manifest = ms_dataprep.build(
            source, tmp_path / backend, tokenizer=trained / "tokenizer.json", config=config, progress=False
        )
        rows[backend] = Rows(tmp_path / backend, manifest).read(np.arange(manifest.rows)).tolist()

    assert rows["fast"] == rows["reference"]


def test_wrong_ids_are_noticed_at_start(trained: Path, monkeypatch, caplog: pytest.LogCaptureFixture) -> None:
    from ms_dataprep.fast_encoder import FastEncoder

    true = FastEncoder.__call__
    monkeypatch.setattr(FastEncoder, "__call__", lambda self, texts: [ids[::-1] for ids in true(self, texts)])
    caplog.set_level(logging.INFO, "ms_dataprep")

    assert load_tokenizer(trained, backend="auto").backend == "reference"
    assert "the reference tokenizer is used, not the fast one: it gives other ids for " in caplog.text
    with pytest.raises(TokenizerError, match="tokenizer_backend: fast cannot be used: it gives other ids"):
        load_tokenizer(trained, backend="fast")


def test_without_the_package_the_reference_is_used_and_one_line_says_so(trained, monkeypatch, caplog) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    caplog.set_level(logging.INFO, "ms_dataprep")

    assert load_tokenizer(trained, backend="auto").backend == "reference"
    assert [record.getMessage() for record in caplog.records] == [
        'the reference tokenizer is used; pip install "ms-dataprep[fast]" for the fast one'
    ]
    with pytest.raises(TokenizerError, match=r'not installed; pip install "ms-dataprep\[fast\]"'):
        load_tokenizer(trained, backend="fast")
