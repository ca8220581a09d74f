import gzip
import hashlib
from pathlib import Path

import pytest
import zstandard
from ms_dataprep.errors import SourceError
from ms_dataprep.sources import find_sources, hash_source, open_stream


def test_a_folder_gives_its_readable_files_in_sorted_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", "deep/c.txt.gz", "image.png", ".hidden.txt", ".git/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")

    sources = find_sources([tmp_path])

    assert [Path(source.path).name for source in sources] == ["a.jsonl", "b.txt", "c.txt.gz"]
    assert [(source.kind, source.packing) for source in sources] == [(".jsonl", ""), (".txt", ""), (".txt", ".gz")]


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")

    assert len(find_sources([tmp_path / "a.txt", tmp_path, str(tmp_path / "*.txt")])) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing*.txt", "the glob matches no readable file"),
        ("*.docx", "the glob matches no readable file"),
        ("missing.txt", "no such file or folder"),
        ("data.docx", "unknown kind of file"),
        ("data.parquet.gz", "unknown kind of file"),
        ("folder", "no readable file among 1"),
    ],
)
def test_input_that_gives_nothing_is_refused_by_name(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    for file in ("data.docx", "data.parquet.gz", "folder/data.pdf"):
        (tmp_path / file).write_bytes(b"x")

    with pytest.raises(SourceError, match=message) as caught:
        find_sources([str(tmp_path / name)])

    assert name in str(caught.value)


def test_the_hash_is_of_the_whole_file_as_it_lies_on_disk(tmp_path: Path) -> None:
    content = gzip.compress(b"abc" * 1000) + b"rubbish behind" * 1000
    (tmp_path / "a.txt.gz").write_bytes(content)
    (source,) = find_sources([tmp_path / "a.txt.gz"])

    assert hash_source(source) == "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_packed_bytes_come_out_as_they_went_in_and_are_counted_on_disk(tmp_path: Path, ending: str) -> None:
    content = b"line\n" * 100_000
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[ending]
    (tmp_path / f"a.txt{ending}").write_bytes(pack(content[:77]) + pack(content[77:]))  # frames may follow each other
    (source,) = find_sources([tmp_path / f"a.txt{ending}"])

    with open_stream(source) as (stream, raw):
        assert stream.read() == content

    assert raw.bytes_read == source.bytes
