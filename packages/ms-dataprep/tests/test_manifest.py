import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ms_dataprep.errors import DatasetError
from ms_dataprep.manifest import read_manifest, write_manifest


@pytest.fixture
def copy(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "int32", tmp_path / "copy"))


def test_the_golden_manifest_comes_back_word_for_word(copy: Path) -> None:
    before = json.loads((copy / "dataset.json").read_text())

    write_manifest(copy, read_manifest(copy))

    assert json.loads((copy / "dataset.json").read_text()) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2, expected 'ms-dataprep.dataset' version 1; use the"),
        ({"format": "other"}, "format 'other'"),
        ({"rows": 7}, "rows is 7, the shards have 5"),
        ({"tokens": 1}, "do not fill the rows"),
        ({"row_length": 3}, "row_length is not seq_length"),
        ({"layout": "int64"}, "layout 'int64' is unknown"),
        ({"extra": 1}, "missing or unknown keys: extra"),
        ({"special_ids": {"eod": 1}, "shards": []}, "contradicts itself"),
        ({"special_ids": {"end": 1}}, "does not follow the contract"),
    ],
)
def test_a_manifest_that_cannot_be_believed_is_refused(copy: Path, change: dict, message: str) -> None:
    content = json.loads((copy / "dataset.json").read_text())
    (copy / "dataset.json").write_text(json.dumps(content | change))

    with pytest.raises(DatasetError, match=message):
        read_manifest(copy)


def damage_by_rename(folder: Path) -> None:
    (folder / "shard-00001.mindrecord").rename(folder / "part.mindrecord")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_by_rename, r"shard-00001.mindrecord is missing \(the folder has part.mindrecord, shard-00000"),
        (lambda folder: (folder / "shard-00000.mindrecord").unlink(), "shard-00000.mindrecord is missing"),
        (lambda folder: (folder / "shard-00001.mindrecord.db").unlink(), "mindrecord.db is missing; copy it"),
        (lambda folder: (folder / "shard-00001.mindrecord").write_bytes(b"short"), "5 bytes, expected"),
        (lambda folder: (folder / "dataset.json").unlink(), "not a dataset or an unfinished one"),
        (lambda folder: (folder / "dataset.json").write_text("{"), "damaged, not JSON"),
        (lambda folder: shutil.rmtree(folder), "no such dataset folder"),
    ],
)
def test_a_damaged_folder_is_refused_with_what_to_do(
    copy: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(copy)

    with pytest.raises(DatasetError, match=message):
        read_manifest(copy)
