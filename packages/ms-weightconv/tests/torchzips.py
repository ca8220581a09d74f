"""Files of `torch.save`, put together byte by byte: the tests need neither torch nor Python's pickle."""

import struct
import zipfile
from pathlib import Path

import numpy as np


def name(module: str, attribute: str) -> bytes:
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)


def group(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + group(*arguments) + b"R"


ORDERED = call(name("collections", "OrderedDict"))


def storage(kind: str, key: str, count: int) -> bytes:
    return group(text("storage"), name("torch", kind), text(key), text("cpu"), number(count)) + b"Q"


def tensor(
    kind: str, key: str, count: int, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, offset: int = 0
) -> bytes:
    steps = strides or tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    return call(
        name("torch._utils", "_rebuild_tensor_v2"),
        storage(kind, key, count),
        number(offset),
        group(*map(number, shape)),
        group(*map(number, steps)),
        b"\x89",
        ORDERED,
    )


def state(items: dict[str, bytes]) -> bytes:
    return ORDERED + b"(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def pickled(content: bytes) -> bytes:
    return b"\x80\x02" + content + b"."


def write_zip(
    path: Path, pickle: bytes, storages: dict[str, bytes], *, compression: int = zipfile.ZIP_STORED, **more: bytes
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickle)
        archive.writestr("archive/byteorder", more.pop("byteorder", b"little"))
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", b"3\n")
        for member, data in more.items():
            archive.writestr(member.replace("__", "/"), data)
    return path


def write_state(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> Path:
    """A state dict of contiguous tensors, each with a storage of its own."""
    kinds = {"F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage", "F64": "DoubleStorage",
             "I64": "LongStorage", "BOOL": "BoolStorage"}  # fmt: skip
    items = {
        key: tensor(kinds[dtype], str(at), words.size, words.shape)
        for at, (key, (dtype, words)) in enumerate(tensors.items())
    }
    return write_zip(
        path, pickled(state(items)), {str(at): words.tobytes() for at, (_, words) in enumerate(tensors.values())}
    )
