"""MindSpore's `.ckpt`: a protobuf message of named tensors, read and written here without protobuf.

    message Checkpoint { repeated Value value = 1; }
    message Value      { string tag = 1; TensorProto tensor = 2; MapTensorProto maptensor = 3; }
    message TensorProto{ repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }

A large tensor is several values with the same tag and dims, whose contents follow one another. A file may end with
`crc_num` and ten bytes, the crc32 of all before it.
"""

import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from ms_weightconv.errors import SourceError, TargetError
from ms_weightconv.tensor import MappedFile, Tensor, blocks
from ms_weightconv.words import WORD_OF_DTYPE, Words, item_size

_DTYPES = {
    "Float64": "F64", "Float32": "F32", "Float16": "F16", "BFloat16": "BF16", "Int64": "I64", "Int32": "I32",
    "Int16": "I16", "Int8": "I8", "UInt64": "U64", "UInt32": "U32", "UInt16": "U16", "UInt8": "U8", "Bool": "BOOL",
}  # fmt: skip
_TYPES = {dtype: name for name, dtype in _DTYPES.items()}
_SLICE_BYTES = 512 * 1024 * 1024  # as MindSpore: the limit of protobuf is 2 GB a message
_CRC_MARK, _CRC_BYTES = b"crc_num", 10
_CIPHER_MARK = (0x7F3A5ED8).to_bytes(4, "little")
_MAX_AXES = 32


@dataclass
class _Stored:
    kind: str
    dims: tuple[int, ...]
    parts: list[tuple[int, int]] = field(default_factory=list)


def read_ckpt_file(path: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Opens a `.ckpt`.

    Returns:
        Its tensors by name, and the names of texts among them, which are no weights.

    Raises:
        SourceError: the file is encrypted, damaged, or holds what is no tensor.
    """
    size = path.stat().st_size
    if size < 4:
        raise SourceError(f"{path}: {size} bytes; not a checkpoint of MindSpore")
    file = MappedFile(path)
    if file.data[:4] == _CIPHER_MARK:
        raise SourceError(f"{path}: encrypted; load it with its key in MindSpore and save it plain")
    end = size
    tail = len(_CRC_MARK) + _CRC_BYTES
    if size > tail and file.data[size - tail : size - _CRC_BYTES] == _CRC_MARK:
        end = size - tail
        _check_crc(path, file, end, int.from_bytes(file.data[size - _CRC_BYTES : size], "big"))
    reader = _Reader(path, file, end)
    stored = reader.read()
    texts = [name for name, value in stored.items() if value.kind == "str"]
    tensors = {name: _tensor(path, file, name, value) for name, value in stored.items() if value.kind != "str"}
    return tensors, texts


def write_ckpt_file(path: Path, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, int, int]]:
    """Writes a `.ckpt` that `mindspore.load_checkpoint` reads, with a checksum of the whole at its end.

    Yields:
        Each tensor's name, size in bytes and crc32, once it is written; the file is whole after the last one.

    Raises:
        TargetError: MindSpore has no name for a tensor's dtype.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise TargetError(f"{name}: MindSpore's .ckpt has no {tensor.dtype}; cast it (--dtype)")
    whole = 0
    with path.open("wb") as file:

        def put(part: bytes | memoryview) -> None:
            nonlocal whole
            file.write(part)
            whole = zlib.crc32(part, whole)

        for name, tensor in tensors.items():
            words, crc = tensor.read(), 0
            left, room = tensor.num_bytes, 0
            for block in blocks(words):
                at = 0
                while at < len(block):
                    if not room:
                        room = min(_SLICE_BYTES, left)
                        put(_head(name, tensor, room))
                    part = block[at : at + room]
                    put(part)
                    crc = zlib.crc32(part, crc)
                    at, room, left = at + len(part), room - len(part), left - len(part)
            if not tensor.num_bytes:
                put(_head(name, tensor, 0))
            yield name, tensor.num_bytes, crc
        file.write(_CRC_MARK + whole.to_bytes(_CRC_BYTES, "big"))
        file.flush()
        os.fsync(file.fileno())


def _head(name: str, tensor: Tensor, num_bytes: int) -> bytes:
    """All that stands before the content of one value."""
    inner = b"".join(b"\x08" + _varint(extent) for extent in tensor.shape)
    kind = _TYPES[tensor.dtype].encode()
    inner += b"\x12" + _varint(len(kind)) + kind + b"\x1a" + _varint(num_bytes)
    tag = name.encode()
    value = b"\x0a" + _varint(len(tag)) + tag + b"\x12" + _varint(len(inner) + num_bytes) + inner
    return b"\x0a" + _varint(len(value) + num_bytes) + value


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _check_crc(path: Path, file: MappedFile, end: int, expected: int) -> None:
    crc = 0
    for start in range(0, end, 1 << 24):
        crc = zlib.crc32(file.words("U8", min(1 << 24, end - start), start).data, crc)
    if crc != expected:
        raise SourceError(f"{path}: its checksum is {crc:08x}, expected {expected:08x}; the file is damaged")


def _tensor(path: Path, file: MappedFile, name: str, stored: _Stored) -> Tensor:
    if stored.kind not in _DTYPES:
        raise SourceError(f"{path}: {name} has type {stored.kind!r:.50}, expected one of {', '.join(_DTYPES)}")
    dtype, shape = _DTYPES[stored.kind], stored.dims
    found = sum(length for _, length in stored.parts)
    if shape in ((), (0,)) and found == item_size(dtype):
        shape = ()
    if prod(shape) * item_size(dtype) != found:
        raise SourceError(f"{path}: {name} is {stored.kind} {list(shape)}, but has {found} bytes")
    if len(stored.parts) == 1:
        return file.tensor(dtype, shape, stored.parts[0][0])
    return Tensor(dtype, shape, partial(_joined, file, dtype, shape, tuple(stored.parts)))


def _joined(file: MappedFile, dtype: str, shape: tuple[int, ...], parts: tuple[tuple[int, int], ...]) -> Words:
    flat = np.empty(prod(shape) * item_size(dtype), "|u1")
    at = 0
    for start, length in parts:
        flat[at : at + length] = file.words("U8", length, start)
        at += length
    return flat.view(WORD_OF_DTYPE[dtype]).reshape(shape)


class _Reader:
    """Walks through the message by its lengths; nothing is copied but names."""

    def __init__(self, path: Path, file: MappedFile, end: int) -> None:
        self._path, self._data, self._end = path, file.data, end

    def read(self) -> dict[str, _Stored]:
        stored: dict[str, _Stored] = {}
        at = 0
        while at < self._end:
            number, start, end = self._field(at, self._end)
            if number != 1:
                raise self._fault(at, f"field {number}")
            name, value = self._value(start, end)
            known = stored.setdefault(name, value)
            if known is not value:
                if (known.kind, known.dims) != (value.kind, value.dims):
                    raise SourceError(f"{self._path}: {name:.200} is in the file twice, with different types or shapes")
                known.parts += value.parts
            at = end
        if not stored:
            raise SourceError(f"{self._path}: holds no tensors")
        return stored

    def _value(self, at: int, end: int) -> tuple[str, _Stored]:
        name, stored = None, None
        while at < end:
            number, start, stop = self._field(at, end)
            if number == 1 and stop - start <= 4096:
                name = self._text(start, stop)
            elif number == 2:
                stored = self._tensor(start, stop)
            else:
                raise self._fault(at, "a map parameter, which is not read" if number == 3 else f"field {number}")
            at = stop
        if name is None or stored is None:
            raise self._fault(at, "a value without a name or without a tensor")
        return name, stored

    def _tensor(self, at: int, end: int) -> _Stored:
        dims: list[int] = []
        kind, parts = "", []
        while at < end:
            if self._data[at] == 0x08 and len(dims) < _MAX_AXES:
                extent, at = self._varint(at + 1, end)
                dims.append(extent)
                continue
            number, start, stop = self._field(at, end)
            if number == 1 and len(dims) < _MAX_AXES:  # packed, as newer protobuf writes numbers
                while start < stop and len(dims) < _MAX_AXES:
                    extent, start = self._varint(start, stop)
                    dims.append(extent)
            elif number == 2 and stop - start <= 32:
                kind = self._text(start, stop)
            elif number == 3:
                parts.append((start, stop - start))
            else:
                raise self._fault(at, f"field {number}")
            at = stop
        return _Stored(kind, tuple(dims), parts)

    def _field(self, at: int, end: int) -> tuple[int, int, int]:
        """Number, start and end of a field that has a length."""
        key, after = self._varint(at, end)
        if key & 7 != 2:
            raise self._fault(at, f"wire type {key & 7}")
        length, start = self._varint(after, end)
        if start + length > end:
            raise SourceError(
                f"{self._path}: a field of {length} bytes at byte {at} reaches beyond its end; cut short?"
            )
        return key >> 3, start, start + length

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 63:
            digit = self._data[at]
            value |= (digit & 127) << shift
            at, shift = at + 1, shift + 7
            if digit < 128:
                return value, at
        raise self._fault(at, "a number that does not end")

    def _text(self, start: int, stop: int) -> str:
        try:
            return self._data[start:stop].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fault(start, "a name that is no UTF-8") from error

    def _fault(self, at: int, what: str) -> SourceError:
        return SourceError(f"{self._path}: {what} at byte {at}; not a checkpoint of MindSpore, or a damaged one")
