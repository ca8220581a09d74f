import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from ms_dataprep.errors import DatasetError
from ms_dataprep.mindrecord import FileSizes, RowReader, choose_sizes, count_rows, write_rows

EDGES = [0, 1, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 151643, 2**31 - 1, -1, -128, -129, -32769, -(2**31)]


def sizes_of(rows: np.ndarray, layout: str) -> FileSizes:
    return choose_sizes(likely_rows=len(rows), most_rows=len(rows), row_length=rows.shape[1], layout=layout)


def read_all(path: Path, row_length: int, layout: str) -> np.ndarray:
    reader = RowReader(path, row_length, layout)
    rows = np.empty((len(reader), row_length), np.int32)
    for number in range(len(reader)):
        reader.read(number, rows[number])
    return rows


@pytest.mark.parametrize("layout", ["int32", "bytes"])
def test_every_id_comes_back_from_our_reader_and_from_mindsporess(tmp_path: Path, layout: str) -> None:
    import mindspore.dataset

    rows = np.random.default_rng(0).integers(0, 200_000, (700, 129)).astype(np.int32)
    rows[0, : len(EDGES)] = EDGES
    write_rows(tmp_path / "rows.mindrecord", rows, layout, sizes_of(rows, layout))

    stock = mindspore.dataset.MindDataset(str(tmp_path / "rows.mindrecord"), shuffle=False, num_parallel_workers=1)
    theirs = [np.asarray(item[0]).view("<i4") for item in stock.create_tuple_iterator(num_epochs=1, output_numpy=True)]

    assert count_rows(tmp_path / "rows.mindrecord") == 700
    assert np.array_equal(read_all(tmp_path / "rows.mindrecord", 129, layout), rows)
    assert np.array_equal(np.array(theirs).reshape(700, 129), rows)


@pytest.mark.parametrize("layout", ["int32", "bytes"])
def test_ten_rows_take_less_than_200_kb(tmp_path: Path, layout: str) -> None:
    rows = np.full((10, 2049), 151643, np.int32)
    write_rows(tmp_path / "a.mindrecord", rows, layout, sizes_of(rows, layout))

    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 200_000


def test_a_row_longer_than_the_smallest_page_is_written(tmp_path: Path) -> None:
    rows = np.full((3, 40_001), 70_000, np.int32)
    write_rows(tmp_path / "a.mindrecord", rows, "int32", sizes_of(rows, "int32"))

    assert np.array_equal(read_all(tmp_path / "a.mindrecord", 40_001, "int32"), rows)


def test_a_row_no_page_holds_is_refused() -> None:
    with pytest.raises(DatasetError, match="does not fit a MindRecord page"):
        choose_sizes(likely_rows=1, most_rows=1, row_length=70_000_000, layout="bytes")


@pytest.mark.parametrize("layout", ["int32", "bytes"])
def test_the_golden_shards_are_read(golden: Path, layout: str) -> None:
    shards = sorted((golden / layout).glob("*.mindrecord"))
    rows = np.concatenate([read_all(path, 9, layout) for path in shards])

    assert rows.tolist() == json.loads((golden / "expected.json").read_text())["rows"]


def test_damage_is_named(golden: Path, tmp_path: Path) -> None:
    for name in ("shard-00000.mindrecord", "shard-00000.mindrecord.db"):
        shutil.copyfile(golden / "int32" / name, tmp_path / name)
    path = tmp_path / "shard-00000.mindrecord"
    out = np.empty(9, np.int32)

    with pytest.raises(DatasetError, match="row 0 has 9 ids, expected 5"):
        RowReader(path, 5, "int32").read(0, out)
    content = path.read_bytes()
    path.write_bytes(b"\x00" * 20 + content[20:])
    with pytest.raises(DatasetError, match="not a MindRecord file"):
        RowReader(path, 9, "int32")
    path.write_bytes(content[:16_390])
    with pytest.raises(DatasetError, match="cut off"):
        RowReader(path, 9, "int32")
    path.write_bytes(content)
    (tmp_path / "shard-00000.mindrecord.db").write_bytes(b"no database" * 100)
    with pytest.raises(DatasetError, match=r"shard-00000\.mindrecord\.db: damaged"):
        RowReader(path, 9, "int32")
