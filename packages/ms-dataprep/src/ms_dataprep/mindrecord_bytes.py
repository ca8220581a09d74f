"""MindRecord files of one bytes column, byte for byte those that MindSpore 2.10's FileWriter makes of the same rows.

Our own writer, because FileWriter spends most of its time on Python around each row: this one is five times as fast
(benchmark `dataprep`, key `write_mtok_s`). A test compares the files of both.

A row group is what fits a page of blobs. Pages of blobs come first, then pages of raw data: of each row the 13 bytes
of an empty record, whole row groups a page. The index beside the file says where both of a row lie.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_RAW_ROW = b"\x05\x00\x00\x00\x00\x00\x00\x00\x81\xa2id\x00"  # u64 length, msgpack {"id": 0}
_TABLES = (
    "CREATE TABLE INDEXES(  ROW_ID               INT  NOT NULL, PAGE_ID_RAW          INT  NOT NULL, PAGE_OFFSET_RAW "
    "     INT  NOT NULL, PAGE_OFFSET_RAW_END  INT  NOT NULL, ROW_GROUP_ID         INT  NOT NULL, PAGE_ID_BLOB         "
    "INT  NOT NULL, PAGE_OFFSET_BLOB     INT  NOT NULL, PAGE_OFFSET_BLOB_END INT  NOT NULL, PRIMARY KEY(ROW_ID))",
    "CREATE TABLE SHARD_NAME(NAME TEXT NOT NULL)",
)


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where the rows of a file lie."""

    num_rows: int
    row_bytes: int
    rows_per_group: int
    groups_per_raw_page: int
    num_groups: int

    def group_rows(self, group: int) -> int:
        return min(self.rows_per_group, self.num_rows - group * self.rows_per_group)


def write_byte_rows(
    path: Path, rows: NDArray[np.int32], *, column: str, description: str, header_bytes: int, page_bytes: int
) -> None:
    """Writes the file, and its index as `path`.db.

    Args:
        path: a file that does not exist; its name stays in it.
        rows: int32 [rows, row_length], at least one; stored little-endian.
        column: the column's name.
        description: of the schema.
        header_bytes: size of the header; it must hold about 200 bytes a page.
        page_bytes: size of a page; it must hold a row of 8 + 4 * row_length bytes.

    Raises:
        ValueError: a page cannot hold a row, or the header the list of pages.
    """
    row_bytes = 8 + 4 * rows.shape[1]
    rows_per_group = page_bytes // row_bytes
    if not rows_per_group:
        raise ValueError(f"page_bytes: {page_bytes}, a row has {row_bytes}")
    layout = _Layout(
        num_rows=len(rows), row_bytes=row_bytes, rows_per_group=rows_per_group,
        groups_per_raw_page=page_bytes // (len(_RAW_ROW) * rows_per_group), num_groups=-(-len(rows) // rows_per_group),
    )  # fmt: skip
    header = _make_header(layout, path.name, column, description, header_bytes, page_bytes)
    if len(header) > header_bytes:
        raise ValueError(f"header_bytes: {header_bytes}, the list of pages needs {len(header)}")
    with path.open("wb") as file:
        file.write(header)
        page = np.empty((rows_per_group, row_bytes), dtype=np.uint8)
        page[:, :8] = np.frombuffer((row_bytes - 8).to_bytes(8, "little"), dtype=np.uint8)
        for group in range(layout.num_groups):
            first, count = group * rows_per_group, layout.group_rows(group)
            part = np.ascontiguousarray(rows[first : first + count], dtype="<i4")
            page[:count, 8:] = part.view(np.uint8).reshape(count, -1)
            file.seek(header_bytes + group * page_bytes)
            file.write(page[:count].data)
        for number, first in enumerate(range(0, layout.num_groups, layout.groups_per_raw_page)):
            groups = range(first, min(first + layout.groups_per_raw_page, layout.num_groups))
            file.seek(header_bytes + (layout.num_groups + number) * page_bytes)
            file.write(_RAW_ROW * sum(map(layout.group_rows, groups)))
    _write_index(path, layout)


def _make_header(
    layout: _Layout, name: str, column: str, description: str, header_bytes: int, page_bytes: int
) -> bytes:
    fields = {
        "header_size": header_bytes, "index_fields": None, "page": list(_describe_pages(layout)),
        "page_size": page_bytes, "compression_size": 0,
        "schema": [{"blob_fields": [column], "desc": description, "schema": {column: {"type": "bytes"}}}],
        "shard_addresses": [name], "shard_id": 0, "statistics": None, "version": "3.0",
    }  # fmt: skip
    text = json.dumps(fields, separators=(",", ":")).encode("utf-8")
    return len(text).to_bytes(8, "little") + text


def _describe_pages(layout: _Layout) -> Iterator[dict[str, Any]]:
    for group in range(layout.num_groups):
        first, count = group * layout.rows_per_group, layout.group_rows(group)
        yield {
            "end_row_id": first + count, "page_id": group, "page_size": count * layout.row_bytes,
            "page_type": "BLOB_DATA", "page_type_id": group, "row_group_ids": [{"id": 0, "offset": 0}], "shard_id": 0,
            "start_row_id": first,
        }  # fmt: skip
    group_bytes = len(_RAW_ROW) * layout.rows_per_group
    for number, first in enumerate(range(0, layout.num_groups, layout.groups_per_raw_page)):
        groups = range(first, min(first + layout.groups_per_raw_page, layout.num_groups))
        page = layout.num_groups + number
        yield {
            "end_row_id": 0, "page_id": page, "page_size": len(_RAW_ROW) * sum(map(layout.group_rows, groups)),
            "page_type": "RAW_DATA", "page_type_id": page if number else 0,
            "row_group_ids": [{"id": group, "offset": place * group_bytes} for place, group in enumerate(groups)],
            "shard_id": 0, "start_row_id": 0,
        }  # fmt: skip


def _write_index(path: Path, layout: _Layout) -> None:
    numbers = np.arange(layout.num_rows)
    groups, places = np.divmod(numbers, layout.rows_per_group)
    raw_pages, group_places = np.divmod(groups, layout.groups_per_raw_page)
    raw = (group_places * layout.rows_per_group + places) * len(_RAW_ROW)
    blobs = places * layout.row_bytes
    columns = (
        numbers, layout.num_groups + raw_pages, raw, raw + len(_RAW_ROW), groups, groups, blobs,
        blobs + layout.row_bytes,
    )  # fmt: skip
    with closing(sqlite3.connect(path.with_name(path.name + ".db"))) as connection, connection:
        for table in _TABLES:
            connection.execute(table)
        entries = zip(*(column.tolist() for column in columns), strict=True)
        connection.executemany("INSERT INTO INDEXES VALUES (?, ?, ?, ?, ?, ?, ?, ?)", entries)
        connection.execute("INSERT INTO SHARD_NAME VALUES (?)", (path.name,))
