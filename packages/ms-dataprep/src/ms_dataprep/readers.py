"""Readers: the documents of a file, and its bad lines with the reason, never one for the other."""

import csv
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ms_dataprep.errors import DataprepError
from ms_dataprep.sources import Source

_BOM = b"\xef\xbb\xbf"
_DAMAGE = (EOFError, OSError, zlib.error)


@dataclass(frozen=True, slots=True)
class Document:
    """One document as it was read."""

    text: str
    """Its text, uncleaned."""
    line: int
    """The line or record of its file, from 1."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A line, or a whole file, that gave no document."""

    line: int
    """The line or record, from 1."""
    kind: str
    """`bad_line` or `blank_line`: the name under which it is counted."""
    reason: str
    """What was found, for a person."""


Item = Document | Rejected


def read_documents(
    source: Source, stream: io.BufferedIOBase, text_keys: Sequence[str], *, num_bytes: int | None = None
) -> Iterator[Item]:
    """Reads an open source to its end, in order; bad content is yielded as Rejected, never raised.

    A `.txt` file is one document. `.jsonl` has a JSON object a line, `.json` one object or a list of them, `.csv` and
    `.tsv` a header and records, `.parquet` and `.arrow` (IPC file or stream) columns. The text stands under the text
    keys; several are joined by a blank line, and those that are missing or empty are passed over as long as one is
    there.

    Args:
        source: the file.
        stream: its unpacked bytes.
        text_keys: where the text stands, but for `.txt`.
        num_bytes: of `.jsonl` only: the lines that begin in the first so many bytes of the stream, counted from 1.

    Raises:
        DataprepError: `.parquet` or `.arrow` without the package that reads them.
    """
    if source.kind == ".txt":
        yield from _read_text(stream)
    elif source.kind == ".jsonl":
        yield from _read_json_lines(stream, text_keys, num_bytes)
    elif source.kind == ".json":
        yield from _read_json(stream, text_keys)
    elif source.kind in (".csv", ".tsv"):
        yield from _read_records(stream, text_keys, "\t" if source.kind == ".tsv" else ",")
    else:
        yield from _read_columns(source, text_keys)


def _read_text(stream: io.BufferedIOBase) -> Iterator[Item]:
    content = b""
    try:
        content = stream.read()
        yield Document(content.removeprefix(_BOM).decode("utf-8"), 1)
    except UnicodeDecodeError as error:
        yield Rejected(content.removeprefix(_BOM).count(b"\n", 0, error.start) + 1, "bad_line", _name_encoding(error))
    except _damage_errors() as error:
        yield Rejected(1, "bad_line", _name_damage(error))


def _read_json_lines(stream: io.BufferedIOBase, keys: Sequence[str], num_bytes: int | None) -> Iterator[Item]:
    number = taken = 0
    try:
        for number, line in enumerate(stream, 1):
            yield _parse_line(line.removeprefix(_BOM) if number == 1 else line, number, keys)
            taken += len(line)
            if num_bytes is not None and taken >= num_bytes:
                return
    except _damage_errors() as error:
        yield Rejected(number + 1, "bad_line", _name_damage(error))


def _parse_line(line: bytes, number: int, keys: Sequence[str]) -> Item:
    if not line.strip():
        return Rejected(number, "blank_line", "blank")
    try:
        record: Any = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Rejected(number, "bad_line", _name_encoding(error))
    except json.JSONDecodeError as error:
        return Rejected(number, "bad_line", f"not JSON: {error.msg} at character {error.pos + 1}")
    except (RecursionError, ValueError) as error:  # nested too deeply, or a number of thousands of digits
        return Rejected(number, "bad_line", f"not readable as JSON: {error}")
    return _take_text(record, number, keys)


def _read_json(stream: io.BufferedIOBase, keys: Sequence[str]) -> Iterator[Item]:
    try:
        records: Any = json.loads(stream.read().removeprefix(_BOM).decode("utf-8"))
    except UnicodeDecodeError as error:
        yield Rejected(1, "bad_line", _name_encoding(error))
        return
    except json.JSONDecodeError as error:
        yield Rejected(error.lineno, "bad_line", f"not JSON: {error.msg} at character {error.colno} of the line")
        return
    except (RecursionError, ValueError) as error:
        yield Rejected(1, "bad_line", f"not readable as JSON: {error}")
        return
    except _damage_errors() as error:
        yield Rejected(1, "bad_line", _name_damage(error))
        return
    for number, record in enumerate(records if isinstance(records, list) else [records], 1):
        yield _take_text(record, number, keys)


def _read_records(stream: io.BufferedIOBase, keys: Sequence[str], delimiter: str) -> Iterator[Item]:
    csv.field_size_limit(sys.maxsize)
    number = 0
    text: Any = io.TextIOWrapper(cast("Any", stream), encoding="utf-8-sig", newline="")
    try:
        for number, record in enumerate(csv.DictReader(text, delimiter=delimiter), 1):
            if None in record:
                yield Rejected(number, "bad_line", f"{len(record[None])} fields more than the header has")
            else:
                yield _take_text(record, number, keys)
    except (csv.Error, UnicodeDecodeError) as error:
        yield Rejected(number + 1, "bad_line", f"not readable as {delimiter!r}-separated UTF-8: {error}")
    except _damage_errors() as error:
        yield Rejected(number + 1, "bad_line", _name_damage(error))
    finally:
        text.detach()


def _read_columns(source: Source, keys: Sequence[str]) -> Iterator[Item]:
    try:
        import pyarrow
    except ImportError as error:
        raise DataprepError(f'{source.path}: {source.kind} needs pyarrow; pip install "ms-dataprep[arrow]"') from error
    number = 0
    try:
        for batch in _open_batches(source, keys):
            columns = {name: batch.column(name) for name in keys if name in batch.schema.names}
            for place in range(batch.num_rows):
                number += 1
                yield _take_text({name: column[place].as_py() for name, column in columns.items()}, number, keys)
    except (pyarrow.ArrowException, OSError) as error:
        yield Rejected(number + 1, "bad_line", f"unreadable: {' '.join(str(error).split())}")


def _open_batches(source: Source, keys: Sequence[str]) -> Iterable[Any]:
    import pyarrow
    from pyarrow import parquet

    if source.kind == ".parquet":
        file = parquet.ParquetFile(source.path)
        names = [name for name in keys if name in file.schema_arrow.names]
        batches: Iterable[Any] = file.iter_batches(batch_size=1024, columns=names)
        return batches
    try:
        reader = pyarrow.ipc.open_file(source.path)
    except pyarrow.ArrowInvalid:
        stream: Iterable[Any] = pyarrow.ipc.open_stream(pyarrow.memory_map(source.path))
        return stream
    return (reader.get_batch(number) for number in range(reader.num_record_batches))


def _take_text(record: Any, number: int, keys: Sequence[str]) -> Item:
    if not isinstance(record, Mapping):
        return Rejected(number, "bad_line", f"expected a JSON object, found {_name_type(record)}")
    texts, names = [], ", ".join(map(repr, keys))
    for key in keys:
        text = record.get(key)
        if isinstance(text, str):
            texts.append(text)
        elif key in record and (text is not None or len(keys) == 1):
            return Rejected(number, "bad_line", f"{key!r}: expected a string, found {_name_type(text)}")
    if not texts:
        found = ", ".join(sorted(map(str, record))[:8]) or "none"
        return Rejected(number, "bad_line", f"no key {names}; keys found: {found}")
    return Document(texts[0] if len(texts) == 1 else "\n\n".join(filter(None, texts)), number)


def _name_type(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "a string" if isinstance(value, str) else "an object")


def _name_encoding(error: UnicodeDecodeError) -> str:
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start + 1}"


def _damage_errors() -> tuple[type[Exception], ...]:
    zstandard = sys.modules.get("zstandard")  # there when a .zst is open
    return (*_DAMAGE, zstandard.ZstdError) if zstandard else _DAMAGE


def _name_damage(error: Exception) -> str:
    if isinstance(error, EOFError) and "zstd" not in str(error):
        return "the gzip stream ends early (file cut off)"
    return str(error) if isinstance(error, EOFError) else f"unreadable: {error}"
