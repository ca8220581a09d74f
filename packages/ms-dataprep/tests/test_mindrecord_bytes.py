import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from ms_dataprep.mindrecord_bytes import write_byte_rows


def write_stock(path: Path, rows: np.ndarray, header: int, page: int) -> None:
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(str(path), 1)
    writer.set_header_size(header)
    writer.set_page_size(page)
    writer.add_schema({"input_ids": {"type": "bytes"}}, "a test")
    writer.write_raw_data([{"input_ids": row.astype("<i4").tobytes()} for row in rows])
    writer.commit()


def read_index(path: Path) -> tuple[list, list, list]:
    with closing(sqlite3.connect(path.with_name(path.name + ".db"))) as connection:
        tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        rows = connection.execute("SELECT * FROM INDEXES ORDER BY ROW_ID").fetchall()
        return tables, rows, connection.execute("SELECT * FROM SHARD_NAME").fetchall()


@pytest.mark.parametrize(
    ("num_rows", "row_length", "page"),
    [
        (1, 2, 32768),
        (1, 8190, 32768),  # a row that fills its page to the last byte
        (80, 100, 32768),  # a page less than full
        (81, 100, 32768),
        (6000, 10, 32768),  # raw data of several pages
        (2048 + 7, 8, 32768 + 8),
        (300, 2049, 16 * 8204),  # whole rows a page, as `choose_sizes` has it
        (5000, 2, 32768),  # raw data larger than the rows
    ],
)
def test_files_are_those_of_mindspores_own_writer(tmp_path: Path, num_rows: int, row_length: int, page: int) -> None:
    rows = np.random.default_rng(0).integers(-(2**31), 2**31, (num_rows, row_length), dtype=np.int32)
    ours, theirs = tmp_path / "ours" / "a.mindrecord", tmp_path / "theirs" / "a.mindrecord"
    for path in (ours, theirs):
        path.parent.mkdir()

    write_byte_rows(ours, rows, column="input_ids", description="a test", header_bytes=16384, page_bytes=page)
    write_stock(theirs, rows, 16384, page)

    assert ours.read_bytes() == theirs.read_bytes()
    assert read_index(ours) == read_index(theirs)


def test_mindspore_reads_the_rows_back(tmp_path: Path) -> None:
    import mindspore.dataset as ds

    rows = np.random.default_rng(1).integers(0, 100, (500, 33), dtype=np.int32)
    for number, part in enumerate(np.split(rows, 4)):
        write_byte_rows(
            tmp_path / f"{number}.mindrecord", part, column="ids", description="", header_bytes=16384, page_bytes=32768
        )

    files = sorted(map(str, tmp_path.glob("*.mindrecord")))
    read = ds.MindDataset(files, shuffle=False).create_tuple_iterator(num_epochs=1, output_numpy=True)

    assert sorted(row.view("<i4").tolist() for (row,) in read) == sorted(rows.tolist())


def test_sizes_that_cannot_hold_the_rows_are_refused(tmp_path: Path) -> None:
    rows = np.zeros((2000, 100), dtype=np.int32)

    with pytest.raises(ValueError, match="page_bytes: 256, a row has 408"):
        write_byte_rows(tmp_path / "a", rows, column="ids", description="", header_bytes=16384, page_bytes=256)
    with pytest.raises(ValueError, match="header_bytes: 1024, the list of pages needs"):
        write_byte_rows(tmp_path / "a", rows, column="ids", description="", header_bytes=1024, page_bytes=32768)
    assert not (tmp_path / "a").exists()
