from pathlib import Path

import ms_dataprep
import numpy as np
import pytest
from ms_dataprep.errors import ConfigError, DatasetError
from ms_dataprep.stock import StockFormat

FORM = StockFormat(vocab_size=70_000, eod_id=0)


def write_stock(folder: Path, rows: np.ndarray, *, files: int = 1, **fields: dict) -> Path:
    from mindspore.mindrecord import FileWriter

    folder.mkdir(exist_ok=True)
    writer = FileWriter(str(folder / "part"), files)
    writer.add_schema({"input_ids": {"type": "int32", "shape": [rows.shape[1]]}, **fields}, "another program")
    writer.write_raw_data([{"input_ids": row, **dict.fromkeys(fields, row)} for row in rows])
    writer.commit()
    return folder


@pytest.fixture
def rows() -> np.ndarray:
    rows = np.random.default_rng(0).integers(1, 70_000, (25, 9), dtype=np.int32)
    rows[:, 4] = 0
    return rows


def test_files_of_another_program_are_read_as_mindspore_reads_them(tmp_path: Path, rows: np.ndarray) -> None:
    import mindspore.dataset as ds

    folder = write_stock(tmp_path / "stock", rows, files=12)

    loader = ms_dataprep.load(folder, batch_size=5, evaluation=True, stock=FORM)
    batches = list(loader)

    found = np.concatenate([batch["input_ids"] for batch in batches])
    files = [str(folder / f"part{number:02d}") for number in range(12)]
    theirs = ds.MindDataset(files, shuffle=False).create_tuple_iterator(num_epochs=1, output_numpy=True)
    expected = sorted(row.tolist() for (row,) in theirs)
    assert sorted(map(list, np.concatenate([found, rows_ends(batches)], axis=1).tolist())) == expected
    assert all((batch["labels"][:, 4] == -100).all() for batch in batches)


def rows_ends(batches: list) -> np.ndarray:
    return np.concatenate([batch["labels"][:, -1:] for batch in batches])


def test_training_order_and_resume_are_those_of_a_dataset(tmp_path: Path, rows: np.ndarray) -> None:
    folder = write_stock(tmp_path / "stock", rows)
    loader = ms_dataprep.load(folder, batch_size=5, stock=FORM)
    iterator = iter(loader)
    first = [next(iterator)["input_ids"] for _ in range(7)]

    again = iter(ms_dataprep.load(folder, batch_size=5, samples=20, stock=FORM))

    assert all((next(again)["input_ids"] == batch).all() for batch in first[4:])
    epoch = np.concatenate(first[:5])
    assert sorted(epoch.tolist()) == sorted(rows[:, :-1].tolist())


def test_what_cannot_be_known_is_refused(tmp_path: Path, rows: np.ndarray, golden: Path) -> None:
    folder = write_stock(tmp_path / "stock", rows)
    two = write_stock(tmp_path / "two", rows, mask={"type": "int32", "shape": [9]})
    (tmp_path / "empty").mkdir()

    def load(folder: Path, **options: object) -> ms_dataprep.Loader:
        return ms_dataprep.load(folder, batch_size=1, **{"stock": FORM, **options})

    with pytest.raises(ConfigError, match="without a manifest there is no hash to verify"):
        load(folder, verify=True)
    with pytest.raises(DatasetError, match=r"row \d+ has id \d+ at place \d+, outside the vocabulary of 50000"):
        load(folder, vocab_size=50_000)
    with pytest.raises(DatasetError, match="array columns input_ids, mask, expected input_ids alone"):
        load(two)
    with pytest.raises(DatasetError, match="no MindRecord file"):
        load(tmp_path / "empty")
    with pytest.raises(DatasetError, match=r"has a dataset\.json"):
        load(golden / "int32")
    with pytest.raises(ConfigError, match=r"stock\.eod_id: expected 0 to 9"):
        StockFormat(vocab_size=10, eod_id=10)
    (folder / "part").write_bytes(b"x" * 100)
    with pytest.raises(DatasetError, match="not a MindRecord file"):
        load(folder)
