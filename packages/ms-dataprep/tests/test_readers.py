import gzip
import io
import json
from pathlib import Path

import pyarrow
import pytest
import zstandard
from ms_dataprep.readers import Document, Item, Rejected, read_documents
from ms_dataprep.sources import find_sources, open_stream
from pyarrow import parquet


@pytest.fixture
def read(tmp_path: Path):
    def read_bytes(content: bytes, name: str = "a.jsonl", keys: tuple[str, ...] = ("text",)) -> list[Item]:
        (tmp_path / name).write_bytes(content)
        (source,) = find_sources([tmp_path / name])
        with open_stream(source) as (stream, _):
            return list(read_documents(source, stream, keys))

    return read_bytes


def test_a_bad_and_a_blank_line_lose_nothing_around_them(read) -> None:
    items = read(b'{"text":"a"}\n{"text": "b"\n\n{"text":"c"}\n')

    assert items[0] == Document("a", 1)
    assert isinstance(items[1], Rejected)
    assert (items[1].line, items[1].kind) == (2, "bad_line")
    assert items[1].reason.startswith("not JSON")
    assert items[2] == Rejected(3, "blank_line", "blank")
    assert items[3] == Document("c", 4)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"content": "a", "id": 1}', "no key 'text'; keys found: content, id"),
        (b'{"text": null}', "'text': expected a string, found null"),
        (b'{"text": 1.5}', "'text': expected a string, found a number"),
        (b'{"text": ["a"]}', "'text': expected a string, found a list"),
        (b'["a"]', "expected a JSON object, found a list"),
        (b'{"text": "\xff"}', "not UTF-8: byte 0xff at byte 11"),
        (b"[" * 100_000, "not readable as JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "not readable as JSON"),
    ],
)
def test_a_bad_line_is_rejected_with_what_was_found(read, line: bytes, reason: str) -> None:
    first, second = read(line + b'\n{"text":"ok"}\n')

    assert first.reason.startswith(reason)
    assert second == Document("ok", 2)


def test_a_byte_order_mark_and_crlf_are_no_part_of_a_line(read) -> None:
    assert read(b'\xef\xbb\xbf{"text":"a"}\r\n{"text":"b"}\r\n') == [Document("a", 1), Document("b", 2)]
    assert read(b"\xef\xbb\xbfa\r\nb", "a.txt") == [Document("a\r\nb", 1)]


def test_a_text_file_is_one_document_and_its_bad_byte_is_found(read) -> None:
    assert read("第一行\n第二行\n".encode(), "a.txt") == [Document("第一行\n第二行\n", 1)]
    assert read(b"one\ntwo \xe9\n", "b.txt") == [Rejected(2, "bad_line", "not UTF-8: byte 0xe9 at byte 9")]


def test_a_gzip_file_cut_in_half_gives_its_whole_lines_and_one_rejection(read) -> None:
    content = gzip.compress(b"".join(b'{"text":"%d"}\n' % (i * 7919) for i in range(20_000)), 9)

    assert len(read(content, "whole.jsonl.gz")) == 20_000
    *documents, last = read(content[: len(content) // 2], "cut.jsonl.gz")

    assert documents[0] == Document("0", 1)
    assert all(isinstance(item, Document) for item in documents)
    assert last == Rejected(len(documents) + 1, "bad_line", "the gzip stream ends early (file cut off)")


def test_plain_text_called_gz_is_rejected(read) -> None:
    (only,) = read(b"plain", "a.txt.gz")

    assert only.reason.startswith("unreadable: Not a gzipped file")


RECORDS = [{"text": "第一", "title": "甲"}, {"text": "two\nlines", "title": None}, {"text": "", "title": "c"}]


def as_table() -> pyarrow.Table:
    return pyarrow.Table.from_pylist(RECORDS)


def write_parquet(table: pyarrow.Table) -> bytes:
    file = io.BytesIO()
    parquet.write_table(table, file, row_group_size=2)
    return file.getvalue()


def write_arrow(make) -> bytes:
    file = io.BytesIO()
    with make(file, as_table().schema) as writer:
        writer.write_table(as_table())
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(RECORDS).encode()),
        ("a.jsonl.zst", zstandard.compress("".join(json.dumps(record) + "\n" for record in RECORDS).encode())),
        ("a.parquet", write_parquet(as_table())),
        ("a.arrow", write_arrow(pyarrow.ipc.new_file)),
        ("b.arrow", write_arrow(pyarrow.ipc.new_stream)),
    ],
)
def test_every_kind_of_file_gives_the_same_documents_and_joins_several_keys(read, name: str, content: bytes) -> None:
    assert [item.text for item in read(content, name)] == ["第一", "two\nlines", ""]
    joined = read(content, name, ("title", "text"))
    assert [(item.text, item.line) for item in joined] == [("甲\n\n第一", 1), ("two\nlines", 2), ("c", 3)]


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.tsv", "\t")])
def test_a_table_of_text_has_a_header_quotes_and_its_bad_records(read, name: str, mark: str) -> None:
    lines = [f"id{mark}text", f'1{mark}"a {mark} b\nc"', f"2{mark}x{mark}y", f"3{mark}中文"]

    items = read("\ufeff".encode() + "\n".join(lines).encode(), name)

    assert items[0] == Document(f"a {mark} b\nc", 1)
    assert items[1] == Rejected(2, "bad_line", "1 fields more than the header has")
    assert items[2] == Document("中文", 3)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.parquet", write_parquet(as_table())[:-20], "unreadable: "),
        ("a.arrow", b"ARROW1\x00\x00 and no more", "unreadable: "),
        ("a.json", b'[{"text": "a"},\n {]', "not JSON: "),
        ("a.jsonl.zst", zstandard.compress(b'{"text": "abc"}\n' * 9)[:12], "the zstd stream ends early"),
        ("b.jsonl.zst", b'{"text": "not packed"}', "unreadable: "),
        ("a.csv", b"text\nok\n\xff\n", "not readable as ',' -separated UTF-8".replace(" -", "-")),
    ],
)
def test_a_damaged_file_is_one_rejection_not_a_crash(read, name: str, content: bytes, reason: str) -> None:
    *_, last = read(content, name)

    assert isinstance(last, Rejected)
    assert last.reason.startswith(reason)


def test_a_column_that_is_no_text_is_named(read) -> None:
    table = pyarrow.table({"text": [1, 2]})

    assert read(write_parquet(table), "a.parquet")[1] == Rejected(
        2, "bad_line", "'text': expected a string, found a number"
    )
    assert "no key 'text'" in read(write_parquet(pyarrow.table({"body": ["a"]})), "b.parquet")[0].reason
