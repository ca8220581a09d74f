import gzip
from pathlib import Path

import pytest
from ms_dataprep.readers import Document, Item, Rejected, read_documents
from ms_dataprep.sources import find_sources, open_stream


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
