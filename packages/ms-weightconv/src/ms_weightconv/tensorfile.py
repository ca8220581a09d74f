"""safetensors files: read by mapping after every number of the header was checked, written tensor by tensor.

A header decides where a reader looks and how much it reserves, so nothing of it is believed: sizes and offsets must
tile the file exactly before the first array is made. Reading needs no memory beyond the header's own text.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from ms_weightconv.errors import SourceError
from ms_weightconv.tensor import MappedFile, Tensor, blocks, check_words
from ms_weightconv.words import WORD_OF_DTYPE, item_size

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format
_LFS_START = b"version https://git-lfs"


def read_tensor_file(path: Path) -> dict[str, Tensor]:
    """Maps a safetensors file and returns its tensors by name.

    Raises:
        SourceError: the file is missing, cut short, a Git LFS pointer, or its header is not exactly right.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            header_bytes = int.from_bytes(start, "little")
            _check_start(path, start, size, header_bytes, file.read(120))
            file.seek(8)
            header = parse_json(file.read(header_bytes), f"{path}: header")
            data_bytes = size - 8 - header_bytes
            entries = _check_header(path, header, data_bytes)
    except FileNotFoundError as error:
        raise SourceError(f"{path}: no such file") from error
    data = MappedFile(path)
    return {
        name: data.tensor(dtype, shape, 8 + header_bytes + begin) for name, (dtype, shape, begin) in entries.items()
    }


def parse_json(text: bytes, what: str) -> Any:
    """Parses strict JSON: UTF-8, no duplicate keys, no NaN or Infinity; raises SourceError naming `what`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            double = sorted({key for key in keys if keys.count(key) > 1})
            raise SourceError(f"{what}: key given more than once: {', '.join(double)}")
        return dict(pairs)

    def refuse(word: str) -> None:
        raise SourceError(f"{what}: found {word}, which is not JSON")

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{what}: not valid JSON ({error})") from error


def write_tensor_file(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> Iterator[tuple[str, int, int]]:
    """Writes a safetensors file, one tensor at a time, and flushes it to the disk.

    Yields:
        After each tensor: its name, its bytes, and the crc32 of them.

    Raises:
        TargetError: a tensor does not yield the shape or dtype that it announced.
    """
    header, offsets = lay_out(tensors, metadata)
    with path.open("wb") as file:
        file.write(header)
        for name in sorted(offsets, key=lambda key: offsets[key]):
            words = tensors[name].read()
            check_words(name, words, tensors[name])
            crc = 0
            for block in blocks(words):
                file.write(block)
                crc = zlib.crc32(block, crc)
            yield name, tensors[name].num_bytes, crc
        file.flush()
        os.fsync(file.fileno())


def lay_out(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """The first bytes of a safetensors file, and where in the file each tensor's bytes begin.

    Tensors stand in the given order except that wider elements come first, so that every tensor is aligned.
    """
    order = sorted(tensors, key=lambda name: -item_size(tensors[name].dtype))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    places: dict[str, int] = {}
    offset = 0
    for name in order:
        places[name], end = offset, offset + tensors[name].num_bytes
        header[name] = {
            "dtype": tensors[name].dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    start = len(text).to_bytes(8, "little") + text
    return start, {name: len(start) + place for name, place in places.items()}


def _check_start(path: Path, start: bytes, size: int, header_bytes: int, more: bytes) -> None:
    if (start + more).startswith(_LFS_START):
        raise SourceError(
            f"{path}: a Git LFS pointer of {size} bytes, not weights; fetch the real file with `git lfs pull`"
        )
    if size < 8 or header_bytes > size - 8:
        announced = f"header of {header_bytes} bytes announced" if size >= 8 else "no header"
        raise SourceError(f"{path}: {announced} in a file of {size} bytes; cut short, or not a safetensors file")
    if header_bytes > MAX_HEADER_BYTES:
        raise SourceError(f"{path}: header of {header_bytes} bytes; the format allows {MAX_HEADER_BYTES}")
    if not more.startswith(b"{"):
        raise SourceError(f"{path}: the header does not begin with '{{'; not a safetensors file")


def _check_header(path: Path, header: Any, data_bytes: int) -> dict[str, tuple[str, tuple[int, ...], int]]:
    if not isinstance(header, dict):
        raise SourceError(f"{path}: header is {type(header).__name__}, expected an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SourceError(f"{path}: __metadata__ must map names to texts")
    entries, spans = {}, []
    for name, entry in header.items():
        dtype, shape, begin, end = _check_entry(path, name, entry)
        if end > data_bytes:
            raise SourceError(
                f"{path}: {name} ends at byte {end} of the data, but the file holds {data_bytes}; it was cut short"
            )
        entries[name] = (dtype, shape, begin)
        spans.append((begin, end, name))
    expected = 0
    for begin, end, name in sorted(spans):
        if begin != expected:
            fault = "overlaps the tensor before it" if begin < expected else "leaves a hole before it"
            raise SourceError(f"{path}: {name} {fault} (begins at {begin}, expected {expected})")
        expected = end
    if expected != data_bytes:
        raise SourceError(f"{path}: {data_bytes - expected} bytes behind the last tensor belong to none")
    return entries


def _check_entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise SourceError(f"{path}: {name} must have exactly dtype, shape, data_offsets; found {entry!r:.200}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in WORD_OF_DTYPE:
        raise SourceError(f"{path}: {name} has dtype {dtype!r:.50}, expected one of {', '.join(WORD_OF_DTYPE)}")
    if not _is_sizes(shape) or len(shape) > 32 or not _is_sizes(offsets) or len(offsets) != 2:
        raise SourceError(f"{path}: {name} has shape {shape!r:.200}, offsets {offsets!r:.200}; expected whole numbers")
    begin, end = offsets
    if begin > end or prod(shape) * item_size(dtype) != end - begin:
        raise SourceError(f"{path}: {name} is {dtype} {shape}, which does not fill bytes {begin} to {end}")
    return dtype, tuple(shape), begin, end


def _is_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)
