"""MindSpore's `.ckpt` files, read and written with numpy alone.

A file is a sequence of entries (tag, shape, type, bytes); large tensors are cut into several entries of one tag. What
is written here ends with a checksum, which `mindspore.load_checkpoint(..., crc_check=True)` verifies as well.
"""

import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ms_ckpt.checksum import checksum
from ms_ckpt.errors import InvalidCheckpointError, ValuesError
from ms_ckpt.protobuf import fields, numbers, place, spell_bytes, spell_number, text
from ms_ckpt.tensor import (
    NUMPY_DTYPES,
    LazyTensor,
    Source,
    Tensor,
    as_bytes,
    form_of,
    num_bytes,
    returned_form,
    stored_form,
)

_TYPES = {
    "Int8": "I8", "UInt8": "U8", "Int16": "I16", "UInt16": "U16", "Int32": "I32", "UInt32": "U32", "Int64": "I64",
    "UInt64": "U64", "Float16": "F16", "Float32": "F32", "Float64": "F64", "Bool": "BOOL", "BFloat16": "BF16",
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_TEXT = "str"
_CRC_MARK, _CRC_BYTES = b"crc_num", 10
_SLICE = 512 << 20  # bytes an entry, as MindSpore cuts them
_MAPPED_STEP = 64 << 20


@dataclass(kw_only=True)
class _Entry:
    dtype: str
    dims: list[int]
    ranges: list[tuple[int, int]] = field(default_factory=list)


def read_mindspore_file(path: Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """The tensors of a `.ckpt` file, read when they are needed, and its strings.

    The structure of the whole file is checked, and its checksum if it has one.

    Raises:
        InvalidCheckpointError: not such a file, cut short or damaged (or encrypted); the message names the place.
        ValuesError: it holds an entry of a type that is not read here.
    """
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        entries, strings = _parse(path, data)
    except OSError as error:
        raise InvalidCheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise InvalidCheckpointError(
            f"{path}: not a MindSpore checkpoint, cut short or encrypted: {error}; an encrypted one is decrypted by "
            "mindspore.load_checkpoint(..., dec_key=...)"
        ) from error
    return {tag: _lazy(path, tag, entry) for tag, entry in entries.items()}, strings


def write_mindspore_file(path: Path, tensors: Mapping[str, Source], strings: Mapping[str, str]) -> None:
    """Writes a new, fsynced `.ckpt` file, lazy tensors read one at a time.

    Raises:
        ValuesError: MindSpore could not read it back (float8, a vector of no elements, an empty string); nothing was
            written.
        OSError: the file exists or cannot be written.
    """
    forms = {name: form_of(name, tensor) for name, tensor in tensors.items()}
    refused = [f"{name}: no type for {dtype}" for name, (dtype, _) in forms.items() if dtype not in _NAMES]
    refused += [f"{name}: shape [0] would come back as a scalar" for name, (_, shape) in forms.items() if shape == (0,)]
    refused += [f"{name}: an empty string makes the file unreadable" for name, value in strings.items() if not value]
    if refused:
        raise ValuesError("\n  ".join([f"{path}: MindSpore's .ckpt cannot hold (safetensors can):", *refused]))
    running = 0
    with path.open("xb") as file:

        def write(data: bytes | memoryview) -> None:
            nonlocal running
            running = checksum(data, running)
            file.write(data)

        for name, tensor in tensors.items():
            dtype, shape = forms[name]
            data = as_bytes(stored_form(name, tensor)[1])
            for start in range(0, max(1, len(data)), _SLICE):
                _write_entry(write, name, _NAMES[dtype], list(shape) or [0], data[start : start + _SLICE])
        for name, value in strings.items():
            _write_entry(write, name, _TEXT, [len(value)], memoryview(value.encode("utf-32-le")))
        file.write(_CRC_MARK + running.to_bytes(_CRC_BYTES, "big"))
        file.flush()
        os.fsync(file.fileno())


def _parse(path: Path, data: memoryview) -> tuple[dict[str, _Entry], dict[str, str]]:
    entries: dict[str, _Entry] = {}
    strings: dict[str, str] = {}
    last = None
    for number, value in fields(data, slice(0, _checked_end(path, data))):
        if number != 1:
            raise ValueError(f"unknown field {number}")
        tag, dims, kind, content = _parse_value(path, data, place(value))
        if kind == _TEXT:
            strings[tag] = str(data[content], "utf-32-le")
            continue
        if kind not in _TYPES:
            raise ValuesError(f"{path}: {tag}: type {kind!r} is not read here; known: {', '.join(_TYPES)}")
        if tag not in entries:
            entries[tag] = _Entry(dtype=_TYPES[kind], dims=dims)
        elif tag != last or entries[tag].dims != dims:
            raise ValueError(f"{tag} occurs twice")
        entries[tag].ranges.append((content.start, content.stop))
        last = tag
    for tag, entry in entries.items():
        found = sum(stop - start for start, stop in entry.ranges)
        if entry.dims == [0] and found == NUMPY_DTYPES[entry.dtype].itemsize:
            entry.dims = []  # so MindSpore spells a scalar
        expected = num_bytes(entry.dtype, tuple(entry.dims))
        if min(entry.dims, default=0) < 0 or found != expected:
            raise ValueError(f"{tag}: {found} bytes for {entry.dtype} {entry.dims}, expected {expected}")
    return entries, strings


def _parse_value(path: Path, data: memoryview, where: slice) -> tuple[str, list[int], str, slice]:
    tag: str | None = None
    kind: str | None = None
    dims: list[int] = []
    content: slice | None = None
    for number, value in fields(data, where):
        if number == 1:
            tag = text(data, value)
        elif number == 2:
            for inner, found in fields(data, place(value)):
                if inner == 1:
                    dims += numbers(data, found)
                elif inner == 2:
                    kind = text(data, found)
                elif inner == 3:
                    content = place(found)
        elif number == 3:
            raise ValuesError(f"{path}: {tag}: a hash-map parameter, which has no place in a checkpoint here")
    if tag is None or kind is None or content is None:
        raise ValueError(f"an entry ({tag!r}) without tag, type or content")
    return tag, dims, kind, content


def _checked_end(path: Path, data: memoryview) -> int:
    """Where the entries end; raises InvalidCheckpointError if there is a checksum that differs."""
    tail = len(_CRC_MARK) + _CRC_BYTES
    if len(data) < tail or bytes(data[-tail:-_CRC_BYTES]) != _CRC_MARK:
        return len(data)
    wanted, running, end = int.from_bytes(data[-_CRC_BYTES:], "big"), 0, len(data) - tail
    for start in range(0, end, _MAPPED_STEP):
        running = checksum(data[start : min(start + _MAPPED_STEP, end)], running)
    if running != wanted:
        raise InvalidCheckpointError(f"{path}: checksum is {running:08x}, expected {wanted:08x}")
    return end


def _lazy(path: Path, tag: str, entry: _Entry) -> LazyTensor:
    def read() -> Tensor:
        words = np.empty(entry.dims, NUMPY_DTYPES[entry.dtype])
        into = as_bytes(words)
        with path.open("rb", buffering=0) as file:
            for start, stop in entry.ranges:
                file.seek(start)
                while start < stop:  # a call reads 2 GB at most
                    count = file.readinto(into[: stop - start])
                    if not count:
                        raise InvalidCheckpointError(f"{path}: {tag}: the file was cut short while it was read")
                    into, start = into[count:], start + count
        return returned_form(entry.dtype, words)

    return LazyTensor(dtype=entry.dtype, shape=tuple(entry.dims), read=read)


def _write_entry(
    write: Callable[[bytes | memoryview], None], tag: str, kind: str, dims: list[int], content: memoryview
) -> None:
    name = tag.encode()
    head = b"".join(spell_number(1, size) for size in dims)
    head += spell_bytes(2, len(kind)) + kind.encode() + spell_bytes(3, len(content))
    tensor_bytes = len(head) + len(content)
    before = spell_bytes(1, len(name)) + name + spell_bytes(2, tensor_bytes)
    write(spell_bytes(1, len(before) + tensor_bytes) + before + head)
    write(content)
