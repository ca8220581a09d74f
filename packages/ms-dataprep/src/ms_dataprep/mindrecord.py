"""Rows in a MindRecord file: written whole, read by their place in the mapped file.

A file is a header, whose JSON names its pages, then pages of one size; row places stand in the SQLite index beside it.
`mindrecord_writer` says how a row is stored.
"""

import json
import mmap
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.errors import DatasetError
from ms_dataprep.mindrecord_writer import write_mindrecord

COLUMN = "input_ids"
INDEX_ENDING = ".db"
_SMALLEST_HEADER = 1 << 14
_SMALLEST_PAGE = 1 << 15
_LARGEST_PAGE = 1 << 24
_LARGEST_ALLOWED_PAGE = 1 << 28

# Sizes of the four values whose 2-bit codes one byte holds, highest bits first.
_SIZES = (1 << ((np.arange(256)[:, None] >> np.array([6, 4, 2, 0])) & 3)).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class FileSizes:
    """Sizes of a MindRecord file's header and pages, in bytes; a stock MindDataset wants them equal in all shards."""

    header: int
    page: int


def choose_sizes(*, likely_rows: int, most_rows: int, row_length: int, layout: str) -> FileSizes:
    """About 16 pages a file, pages that hold any row, a header that can list all pages.

    Args:
        likely_rows: rows that the largest shard probably has; decides the size of a page.
        most_rows: rows that no shard exceeds.
        row_length: ids of a row.
        layout: `int32` or `bytes`.

    Raises:
        DatasetError: a row is too long for a MindRecord page.
    """
    longest = 8 + 4 * row_length if layout == "bytes" else 12 + (row_length + 3) // 4 + 4 * row_length
    wanted = min(max(_SMALLEST_PAGE, likely_rows * longest // 16), max(_LARGEST_PAGE, longest))
    rows_per_page = -(-wanted // longest)
    page = -(-rows_per_page * longest // 4) * 4
    if page > _LARGEST_ALLOWED_PAGE:
        raise DatasetError(f"a row of {row_length} ids does not fit a MindRecord page of {_LARGEST_ALLOWED_PAGE} bytes")
    num_pages = most_rows // rows_per_page + most_rows * 16 // page + 2
    header = _SMALLEST_HEADER
    while header < 4096 + 320 * num_pages:
        header *= 2
    return FileSizes(header=header, page=page)


def write_rows(path: Path, rows: NDArray[np.int32], layout: str, sizes: FileSizes) -> None:
    """Writes one MindRecord file and checks that it holds every row.

    Args:
        path: a file that does not exist; its name stays in the file, so only its folder may change later.
        rows: int32 [rows, row_length].
        layout: `int32` or `bytes`.
        sizes: of `choose_sizes`.

    Raises:
        DatasetError: rows went missing.
    """
    write_mindrecord(
        path, rows, layout=layout, column=COLUMN, description="ms-dataprep dataset", header_bytes=sizes.header,
        page_bytes=sizes.page,
    )  # fmt: skip
    if (written := count_rows(path)) != len(rows):
        raise DatasetError(f"{path}: {len(rows)} rows were given and {written} written")


def count_rows(path: Path) -> int:
    """Rows that the index beside a MindRecord file knows."""
    number: int = _query(path, "SELECT COUNT(*) FROM INDEXES")[0][0]
    return number


class RowReader:
    """Random access to the rows of one MindRecord file; the file is mapped, not loaded.

    Raises:
        DatasetError: the file or its index is damaged or holds something else than the manifest says.
    """

    def __init__(self, path: Path, row_length: int, layout: str) -> None:
        self._path = path
        self._row_length = row_length
        self._layout = layout
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)
        header = _parse_header(path, self._map)
        places = np.array(
            _query(path, "SELECT PAGE_ID_BLOB, PAGE_OFFSET_BLOB, PAGE_OFFSET_BLOB_END FROM INDEXES ORDER BY ROW_ID"),
            dtype=np.int64,
        ).reshape(-1, 3)
        self._starts = header["header_size"] + places[:, 0] * header["page_size"] + places[:, 1]
        self._ends = self._starts + places[:, 2] - places[:, 1]
        if len(places) and (self._starts.min() < 8 or self._ends.max() > len(self._bytes)):
            raise DatasetError(f"{path}: cut off, or its {INDEX_ENDING} belongs to another file")

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, number: int, out: NDArray[np.int32]) -> None:
        """Puts one row's ids into `out`, int32 [row_length]."""
        start, end = int(self._starts[number]), int(self._ends[number])
        length = int.from_bytes(self._map[start : start + 8], "little")
        if end - start != 8 + length:
            raise DatasetError(f"{self._path}: row {number} is damaged; run `ms-dataprep verify`")
        if self._layout == "bytes":
            if length != 4 * self._row_length:
                raise DatasetError(
                    f"{self._path}: row {number} has {length} bytes, expected {4 * self._row_length}; run "
                    "`ms-dataprep verify`"
                )
            out[:] = self._bytes[start + 8 : end].view("<i4")
        else:
            self._decode(number, start + 8, end, out)

    def _decode(self, number: int, start: int, end: int, out: NDArray[np.int32]) -> None:
        count = int.from_bytes(self._map[start : start + 4], "big")
        values = start + 4 + (count + 3) // 4
        if count != self._row_length or values > end:
            raise DatasetError(
                f"{self._path}: row {number} has {count} ids, expected {self._row_length}; run `ms-dataprep verify`"
            )
        sizes = _SIZES[self._bytes[start + 4 : values]].reshape(-1)[:count]
        offsets = np.cumsum(sizes, dtype=np.int64)
        if values + int(offsets[-1]) > end or int(sizes.max()) > 4:
            raise DatasetError(f"{self._path}: row {number} is damaged; run `ms-dataprep verify`")
        offsets -= sizes
        # Four bytes from each value's place, its own ones moved to the top and back down with their sign.
        padded = np.zeros(end - values + 4, dtype=np.uint8)
        padded[: end - values] = self._bytes[values:end]
        anywhere: NDArray[np.int32] = np.ndarray((end - values,), "<i4", padded.data, strides=(1,))
        shifts = (4 - sizes.astype(np.int32)) << 3
        np.right_shift(anywhere[offsets] << shifts, shifts, out=out)


def read_fields(path: Path) -> dict[str, dict[str, Any]]:
    """The fields of a MindRecord file by name, each with its `type` and, of an array, its `shape`.

    Raises:
        DatasetError: the file is no MindRecord file, or damaged.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise DatasetError(f"{path}: not a MindRecord file, or its header is damaged")
        file.seek(0)
        header = _parse_header(path, file.read(8 + length))
    fields: dict[str, dict[str, Any]] = header["schema"][0]["schema"]
    return fields


def _parse_header(path: Path, content: Any) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    try:
        header: dict[str, Any] = json.loads(content[8 : 8 + length])
        if isinstance(header["header_size"], int) and isinstance(header["page_size"], int) and header["schema"]:
            return header
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}: not a MindRecord file, or its header is damaged") from error
    raise DatasetError(f"{path}: not a MindRecord file, or its header is damaged")


def _query(path: Path, question: str) -> list[tuple[int, ...]]:
    index = path.with_name(path.name + INDEX_ENDING)
    if not index.is_file():
        raise DatasetError(
            f"{index} is missing: it is MindRecord's index of {path.name}; copy it from where the dataset was built, "
            "or build the dataset again"
        )
    try:
        with closing(sqlite3.connect(index.resolve().as_uri() + "?mode=ro&immutable=1", uri=True)) as connection:
            return connection.execute(question).fetchall()
    except sqlite3.Error as error:
        raise DatasetError(f"{index}: damaged ({error}); copy it again or build the dataset again") from error
