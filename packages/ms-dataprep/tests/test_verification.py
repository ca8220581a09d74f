import json
import shutil
from pathlib import Path

import ms_dataprep
import numpy as np
import pytest
from ms_dataprep.errors import DatasetError
from ms_dataprep.mindrecord import choose_sizes, write_rows
from ms_dataprep.shards import hash_file


@pytest.fixture
def forge(golden: Path, tmp_path: Path):
    """The golden dataset with its first shard's rows changed and all the rest made to fit, as a wrong writer would."""

    def write(change, **manifest_change) -> Path:
        folder = Path(shutil.copytree(golden / "int32", tmp_path / "forged"))
        manifest = json.loads((folder / "dataset.json").read_text())
        rows = np.array(json.loads((golden / "expected.json").read_text())["rows"][:3], np.int32)
        change(rows, manifest["special_ids"]["eod"])
        for ending in ("", ".db"):
            (folder / f"shard-00000.mindrecord{ending}").unlink()
        path = folder / "shard-00000.mindrecord"
        sizes = choose_sizes(likely_rows=3, most_rows=3, row_length=rows.shape[1], layout="int32")
        write_rows(path, rows, "int32", sizes)
        manifest["shards"][0] |= {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        (folder / "dataset.json").write_text(json.dumps(manifest | manifest_change))
        return folder

    return write


@pytest.mark.parametrize("layout", ["int32", "bytes"])
def test_the_golden_dataset_is_right(golden: Path, layout: str) -> None:
    manifest = ms_dataprep.read_manifest(golden / layout)

    found = ms_dataprep.verify(golden / layout)

    assert (found.rows, found.tokens, found.document_ends) == (manifest.rows, manifest.tokens, manifest.documents)
    assert found.largest_id == manifest.special_ids.eod


def test_unchanged_rows_pass(forge) -> None:
    assert ms_dataprep.verify(forge(lambda rows, eod: None)).rows == 5


def put(row: int, place: int, value: int | None):
    def change(rows: np.ndarray, eod: int) -> None:
        rows[row, place] = eod if value is None else value

    return change


def end_twice(rows: np.ndarray, eod: int) -> None:
    rows[0, 2:4] = eod


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put(1, 2, 99_999), "row 1 has id 99999 at place 2, outside the vocabulary"),
        (put(2, 0, -3), "row 2 has id -3 at place 0"),
        (end_twice, "row 0 holds an empty document"),
        (put(0, 4, None), "6 document ends in its rows, expected 5"),
        (put(2, 8, None), "6 document ends in its rows, expected 5"),
    ],
)
def test_rows_that_break_the_contract_are_named(forge, change, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        ms_dataprep.verify(forge(change))
