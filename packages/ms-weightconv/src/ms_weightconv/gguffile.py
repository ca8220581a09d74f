"""GGUF, llama.cpp's one-file format: metadata and tensors; mapped, its quantized types through the package `gguf`.

Layout: magic, version, counts, key/value pairs, tensor infos (name, extents from the innermost, type, offset), padding,
data. Nothing in it is believed: every length and offset must lie in the file before it is used.
"""

import importlib
import struct
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ms_weightconv.errors import SourceError
from ms_weightconv.tensor import MappedFile, Tensor
from ms_weightconv.words import Words

_PLAIN = {0: "F32", 1: "F16", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 30: "BF16"}
# type: name, elements and bytes of a block
_QUANTIZED = {
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
}  # fmt: skip
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_MAX_TEXT, _MAX_AXES = 1 << 24, 4


@dataclass(frozen=True, kw_only=True)
class GgufContent:
    """What a GGUF file holds."""

    metadata: dict[str, Any]
    """Values by key; an array is its length."""
    tensors: dict[str, Tensor]
    """By llama.cpp's names; quantized ones are float32, dequantized when read."""
    quantized: dict[str, int]
    """How many tensors there are of each quantized type."""


def read_gguf_file(path: Path) -> GgufContent:
    """Opens a GGUF file.

    Raises:
        SourceError: the file is damaged, of an unknown version, holds a type that is not read, or holds quantized
            tensors and the package `gguf` is not installed.
    """
    if path.stat().st_size < 24:
        raise SourceError(f"{path}: {path.stat().st_size} bytes; not a GGUF file")
    reader = _Reader(path)
    magic, version = reader.take(4), reader.number("<I")
    if magic != b"GGUF" or version not in (2, 3):
        raise SourceError(f"{path}: begins with {magic!r} version {version}; expected GGUF version 2 or 3")
    num_tensors, num_keys = reader.number("<Q"), reader.number("<Q")
    metadata = {}
    for _ in range(num_keys):
        key = reader.text()
        metadata[key] = reader.value(reader.number("<I"))
    infos = [reader.info() for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        raise SourceError(f"{path}: general.alignment is {alignment!r:.50}")
    start = -(-reader.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    quantized: dict[str, int] = {}
    spans = []
    for name, shape, kind, offset in infos:
        if name in tensors:
            raise SourceError(f"{path}: {name} is in the file twice")
        num_bytes = _num_bytes(path, name, shape, kind)
        spans.append((start + offset, num_bytes, name))
        if start + offset + num_bytes > reader.size:
            raise SourceError(f"{path}: {name} ends behind the end of the file; is it cut short?")
        if kind in _PLAIN:
            tensors[name] = reader.file.tensor(_PLAIN[kind], shape, start + offset)
        else:
            quantized[_QUANTIZED[kind][0]] = quantized.get(_QUANTIZED[kind][0], 0) + 1
            read = partial(_dequantized, reader.file, shape, kind, start + offset, num_bytes)
            tensors[name] = Tensor("F32", shape, read)
    for (begin, length, name), (after, _, other) in zip(sorted(spans), sorted(spans)[1:], strict=False):
        if begin + length > after:
            raise SourceError(f"{path}: {name} overlaps {other}")
    if quantized:
        _quants(path)
    return GgufContent(metadata=metadata, tensors=tensors, quantized=quantized)


def _num_bytes(path: Path, name: str, shape: tuple[int, ...], kind: int) -> int:
    if kind in _PLAIN:
        return prod(shape) * {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "I8": 1}.get(_PLAIN[kind], 2)
    if kind not in _QUANTIZED:
        known = ", ".join([*_PLAIN.values(), *(entry[0] for entry in _QUANTIZED.values())])
        raise SourceError(f"{path}: {name} is of ggml type {kind}, which is not read; read are {known}")
    label, elements, num_bytes = _QUANTIZED[kind]
    if not shape or shape[-1] % elements:
        raise SourceError(f"{path}: {name} is {label} with rows of {shape[-1:]} elements, no multiple of {elements}")
    return prod(shape) // elements * num_bytes


def _quants(path: Path) -> Any:
    try:
        return importlib.import_module("gguf.quants")
    except ImportError as error:
        raise SourceError(
            f'{path}: holds quantized tensors; reading them needs: pip install "ms-weightconv[gguf]"'
        ) from error


def _dequantized(file: MappedFile, shape: tuple[int, ...], kind: int, offset: int, num_bytes: int) -> Words:
    quants, constants = importlib.import_module("gguf.quants"), importlib.import_module("gguf.constants")
    stored = file.words("U8", num_bytes, offset).reshape(prod(shape[:-1]), -1)
    values = quants.dequantize(stored, constants.GGMLQuantizationType(kind))
    words: Words = np.ascontiguousarray(values, "<f4").view("<u4").reshape(shape)
    return words


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path, self.file, self.at = path, MappedFile(path), 0
        self.size = len(self.file.data)

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise SourceError(f"{self._path}: {count} bytes at byte {self.at} reach beyond the end; is it cut short?")
        self.at += count
        return self.file.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        length = self.number("<Q")
        if length > _MAX_TEXT:
            raise SourceError(f"{self._path}: a text of {length} bytes at byte {self.at}")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise SourceError(f"{self._path}: a text at byte {self.at} that is no UTF-8") from error

    def value(self, kind: int) -> Any:
        """A scalar or a text; of an array its length, past which the reader then stands."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY:
            raise SourceError(f"{self._path}: metadata of type {kind} at byte {self.at}")
        inner, count = self.number("<I"), self.number("<Q")
        if inner in _SCALARS:
            self.take(struct.calcsize(_SCALARS[inner]) * count if count < 1 << 40 else 1 << 62)
        elif inner == _TEXT:
            for _ in range(count):  # each needs eight bytes of the file, so the loop ends
                self.take(self.number("<Q"))
        else:
            raise SourceError(f"{self._path}: an array of arrays at byte {self.at}")
        return count

    def info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self.text(), self.number("<I")
        if axes > _MAX_AXES:
            raise SourceError(f"{self._path}: {name:.100} has {axes} axes")
        shape = tuple(self.number("<Q") for _ in range(axes))[::-1]
        if any(extent >= 1 << 40 for extent in shape):
            raise SourceError(f"{self._path}: {name:.100} has shape {shape}")
        return name, shape, self.number("<I"), self.number("<Q")
