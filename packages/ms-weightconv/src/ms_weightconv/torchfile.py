"""`pytorch_model.bin`: a stored zip with a pickle that says where in it the tensors lie; mapped, never extracted."""

import struct
import zipfile
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ms_weightconv.errors import SourceError
from ms_weightconv.tensor import MappedFile, Tensor
from ms_weightconv.torchpickle import StoredTensor, load_tensors
from ms_weightconv.words import Words, item_size

MAX_PICKLE_BYTES = 100_000_000
_BEFORE_1_6 = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_WRAPPERS = ("state_dict", "model", "model_state_dict", "module")
_SAVE_AGAIN = "where torch is installed, torch.save(torch.load(FILE, weights_only=True), NEW_FILE) writes it anew"


def read_torch_file(path: Path) -> dict[str, Tensor]:
    """Opens a file of `torch.save` that holds a state dict, and returns its tensors by name.

    Raises:
        SourceError: the file is of before torch 1.6, TorchScript, compressed, damaged, or its pickle holds more than
            tensors (nothing of it is executed).
    """
    entries = _entries(path)
    folder = next(iter(entries)).partition("/")[0]
    if any(name.startswith(f"{folder}/code/") for name in entries) or f"{folder}/constants.pkl" in entries:
        raise SourceError(f"{path}: TorchScript, a program and not only weights; save the model's state_dict")
    if f"{folder}/data.pkl" not in entries:
        raise SourceError(f"{path}: a zip without {folder}/data.pkl; not a file of torch.save")
    file = MappedFile(path)
    order = entries.get(f"{folder}/byteorder")
    if order and file.data[order[0] : order[0] + order[1]] != b"little":
        raise SourceError(f"{path}: written on a machine with the other byte order; {_SAVE_AGAIN}")
    start, size = entries[f"{folder}/data.pkl"]
    if size > MAX_PICKLE_BYTES:
        raise SourceError(f"{path}: a pickle of {size} bytes; expected at most {MAX_PICKLE_BYTES}")
    try:
        found = _state_dict(load_tensors(file.data[start : start + size]))
        return {
            name: _tensor(file, name, stored, entries.get(f"{folder}/data/{stored.storage}"))
            for name, stored in found.items()
        }
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from error


def _entries(path: Path) -> dict[str, tuple[int, int]]:
    """Start and size of each member, all stored, none overlapping, all in one folder."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(len(_BEFORE_1_6))
        if start == _BEFORE_1_6:
            raise SourceError(f"{path}: of before torch 1.6, not a zip; {_SAVE_AGAIN}")
        if not start.startswith(b"PK\x03\x04"):
            raise SourceError(f"{path}: not a zip, so not a file of torch.save; is it complete?")
        try:
            with zipfile.ZipFile(stream) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError) as error:
            raise SourceError(f"{path}: a damaged zip ({error!s:.100}); fetch it again") from error
        entries: dict[str, tuple[int, int]] = {}
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
                raise SourceError(f"{path}: {member.filename!r:.100} is compressed, which torch.save never does")
            if member.flag_bits & 0x1:
                raise SourceError(f"{path}: {member.filename!r:.100} is encrypted")
            if member.filename in entries:
                raise SourceError(f"{path}: {member.filename!r:.100} is in the zip twice")
            stream.seek(member.header_offset)
            header = stream.read(30)
            if len(header) < 30 or header[:4] != b"PK\x03\x04":
                raise SourceError(f"{path}: {member.filename!r:.100} has no header at byte {member.header_offset}")
            begin = member.header_offset + 30 + sum(struct.unpack("<HH", header[26:30]))
            if begin + member.file_size > size:
                raise SourceError(f"{path}: {member.filename!r:.100} reaches beyond the end of the file; cut short?")
            entries[member.filename] = (begin, member.file_size)
    if len({name.partition("/")[0] for name in entries}) != 1:
        raise SourceError(f"{path}: a zip with {len(entries)} members in several folders; not a file of torch.save")
    end, last = 0, ""
    for begin, length, name in sorted((*span, name) for name, span in entries.items()):
        if begin < end:
            raise SourceError(f"{path}: {name!r:.100} overlaps {last!r:.100}")
        end, last = begin + length, name
    return entries


def _state_dict(content: Any) -> dict[str, StoredTensor]:
    if isinstance(content, dict) and not any(isinstance(value, StoredTensor) for value in content.values()):
        inner = [content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)]
        content = inner[0] if len(inner) == 1 else content
    if not isinstance(content, dict) or not content:
        raise SourceError(f"holds a {type(content).__name__}, expected a state dict")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, StoredTensor):
            raise SourceError(f"{name!r:.100} is a {type(value).__name__}, expected a state dict of tensors only")
    return content


def _tensor(file: MappedFile, name: str, stored: StoredTensor, span: tuple[int, int] | None) -> Tensor:
    if span is None:
        raise SourceError(f"{name}: its storage {stored.storage!r:.100} is not in the file")
    begin, num_bytes = span
    if stored.num_elements * item_size(stored.storage_dtype) != num_bytes:
        raise SourceError(
            f"{name}: its storage has {num_bytes} bytes, expected {stored.num_elements} of {stored.storage_dtype}"
        )
    width, count = item_size(stored.dtype), prod(stored.shape)
    reach = sum((extent - 1) * stride for extent, stride in zip(stored.shape, stored.strides, strict=True)) + 1
    reach = reach if count else 0
    if (stored.offset + reach) * width > num_bytes:
        raise SourceError(f"{name}: shape, strides and offset reach beyond its storage of {num_bytes} bytes")
    if count > reach:
        raise SourceError(f"{name}: {count} elements out of {reach}: a repeated view, not a weight; {_SAVE_AGAIN}")
    start = begin + stored.offset * width
    return Tensor(stored.dtype, stored.shape, partial(_read, file, stored, start, reach))


def _read(file: MappedFile, stored: StoredTensor, start: int, reach: int) -> Words:
    width = item_size(stored.dtype)
    words = file.words(stored.dtype, reach, start)
    if reach != prod(stored.shape) or stored.strides != _dense(stored.shape):
        strides = [stride * width for stride in stored.strides]
        return np.lib.stride_tricks.as_strided(words, stored.shape, strides, writeable=False)
    return words.reshape(stored.shape)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
