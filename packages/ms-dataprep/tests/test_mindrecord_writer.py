import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from ms_dataprep.mindrecord_writer import write_mindrecord


def write_stock(path: Path, rows: np.ndarray, layout: str, header: int, page: int) -> None:
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(str(path), 1)
    writer.set_header_size(header)
    writer.set_page_size(page)
    field = {"type": "bytes"} if layout == "bytes" else {"type": "int32", "shape": [rows.shape[1]]}
    writer.add_schema({"input_ids": field}, "a test")
    writer.write_raw_data([{"input_ids": row.astype("<i4").tobytes() if layout == "bytes" else row} for row in rows])
    writer.commit()


def read_index(path: Path) -> tuple[list, list, list]:
    with closing(sqlite3.connect(path.with_name(path.name + ".db"))) as connection:
        tables = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        rows = connection.execute("SELECT * FROM INDEXES ORDER BY ROW_ID").fetchall()
        return tables, rows, connection.execute("SELECT * FROM SHARD_NAME").fetchall()


@pytest.mark.parametrize("layout", ["int32", "bytes"])
@pytest.mark.parametrize(
    ("num_rows", "row_length", "page"),
    [
        (1, 2, 32768),
        (1, 8187, 32768),
        (1, 7706, 32768),  # an int32 row that all but fills its page
        (80, 100, 32768),  # a page less than full
        (81, 100, 32768),
        (6000, 10, 32768),  # raw data of several pages
        (2048 + 7, 8, 32768 + 8),
        (300, 2049, 16 * 8204),  # whole rows a page, as `choose_sizes` has it
        (5000, 2, 32768),  # raw data larger than the rows
    ],
)
def test_files_are_those_of_mindspores_own_writer(tmp_path: Path, layout, num_rows, row_length, page) -> None:
    random = np.random.default_rng(0)
    rows = random.integers(-(2**31), 2**31, (num_rows, row_length), dtype=np.int32)
    rows >>= random.integers(0, 32, rows.shape, dtype=np.int32)  # of every size
    rows[0, :2] = 127, -128
    rows[-1, -2:] = -32769, 32767
    ours, theirs = tmp_path / "ours" / "a.mindrecord", tmp_path / "theirs" / "a.mindrecord"
    for path in (ours, theirs):
        path.parent.mkdir()

    write_mindrecord(
        ours, rows, layout=layout, column="input_ids", description="a test", header_bytes=16384, page_bytes=page
    )
    write_stock(theirs, rows, layout, 16384, page)

    assert ours.read_bytes() == theirs.read_bytes()
    assert read_index(ours) == read_index(theirs)


@pytest.mark.parametrize("layout", ["int32", "bytes"])
def test_mindspore_reads_the_rows_back(tmp_path: Path, layout: str) -> None:
    import mindspore.dataset as ds

    rows = np.random.default_rng(1).integers(0, 100_000, (500, 33), dtype=np.int32)
    sizes = {"header_bytes": 16384, "page_bytes": 32768}
    for number, part in enumerate(np.split(rows, 4)):
        path = tmp_path / f"{number}.mindrecord"
        write_mindrecord(path, part, layout=layout, column="ids", description="", **sizes)

    files = sorted(map(str, tmp_path.glob("*.mindrecord")))
    read = ds.MindDataset(files, shuffle=False).create_tuple_iterator(num_epochs=1, output_numpy=True)

    found = [(row.view("<i4") if layout == "bytes" else row).tolist() for (row,) in read]
    assert sorted(found) == sorted(rows.tolist())


def test_sizes_that_cannot_hold_the_rows_are_refused(tmp_path: Path) -> None:
    rows = np.zeros((2000, 100), dtype=np.int32)

    def write(header_bytes: int, page_bytes: int) -> None:
        write_mindrecord(
            tmp_path / "a", rows, layout="bytes", column="ids", description="", header_bytes=header_bytes,
            page_bytes=page_bytes,
        )  # fmt: skip

    with pytest.raises(ValueError, match="page_bytes: 256, a row has 408"):
        write(16384, 256)
    with pytest.raises(ValueError, match="header_bytes: 1024, the list of pages needs"):
        write(1024, 32768)
    assert not (tmp_path / "a").exists()
