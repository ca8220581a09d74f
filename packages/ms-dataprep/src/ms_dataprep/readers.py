"""Readers: the documents of a text or JSON-lines file, and its bad lines with the reason, never one for the other."""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ms_dataprep.sources import Source, SourceFile

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Document:
    """One document as it was read."""

    text: str
    """Its text, uncleaned."""
    line: int
    """The line of its file, from 1."""


@dataclass(frozen=True)
class Rejected:
    """A line, or a whole file, that gave no document."""

    line: int
    """The line, from 1."""
    kind: str
    """`bad_line` or `blank_line`: the name under which it is counted."""
    reason: str
    """What was found, for a person."""


def read_documents(source: Source, file: SourceFile, text_key: str) -> Iterator[Document | Rejected]:
    """Reads an open source to its end, in order; bad content is yielded as Rejected, never raised.

    A `.txt` file is one document. A `.jsonl` file has one JSON object a line with the text under `text_key`.
    """
    if source.kind == ".txt":
        yield from _read_text(file)
    else:
        yield from _read_json_lines(file, text_key)


def _read_text(file: SourceFile) -> Iterator[Document | Rejected]:
    try:
        content = file.stream.read()
    except (EOFError, OSError, zlib.error) as error:
        yield Rejected(1, "bad_line", _name_damage(error))
        return
    content = content.removeprefix(_BOM)
    try:
        yield Document(content.decode("utf-8"), 1)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        yield Rejected(line, "bad_line", _name_encoding(error))


def _read_json_lines(file: SourceFile, text_key: str) -> Iterator[Document | Rejected]:
    number = 0
    try:
        for number, line in enumerate(file.stream, 1):
            yield _parse_line(line.removeprefix(_BOM) if number == 1 else line, number, text_key)
    except (EOFError, OSError, zlib.error) as error:
        yield Rejected(number + 1, "bad_line", _name_damage(error))


def _parse_line(line: bytes, number: int, text_key: str) -> Document | Rejected:
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
    if not isinstance(record, dict):
        return Rejected(number, "bad_line", f"expected a JSON object, found {_name_type(record)}")
    if text_key not in record:
        keys = ", ".join(sorted(record)[:8]) or "none"
        return Rejected(number, "bad_line", f"no key {text_key!r}; keys found: {keys}")
    text = record[text_key]
    if not isinstance(text, str):
        return Rejected(number, "bad_line", f"{text_key!r}: expected a string, found {_name_type(text)}")
    return Document(text, number)


def _name_type(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "a string" if isinstance(value, str) else "an object")


def _name_encoding(error: UnicodeDecodeError) -> str:
    return f"not UTF-8: byte 0x{error.object[error.start]:02x} at byte {error.start + 1}"


def _name_damage(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the gzip stream ends early (file cut off)"
    return f"unreadable: {error}"
