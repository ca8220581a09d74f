"""Checkpoint folders of contract `checkpoint`: the newest valid step is read, its model tensors verified first."""

import hashlib
import json
import logging
import os
import re
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ms_weightconv.errors import SourceError
from ms_weightconv.shards import check_inside, read_json
from ms_weightconv.tensor import Tensor, checksum
from ms_weightconv.tensorfile import read_tensor_file
from ms_weightconv.words import WORD_OF_DTYPE, Words

LOGGER = logging.getLogger(__name__)
SHARD = "rank-00000.safetensors"
_STEP = re.compile(r"step-(\d{8,})")
_FILE = re.compile(r"rank-\d{5,}\.safetensors")


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is a checkpoint, or the root of some."""
    return (folder / "COMMIT").exists() or bool(_steps(folder))


def read_checkpoint(folder: Path) -> tuple[Path, dict[str, Tensor], dict[str, Any], int]:
    """Opens the model's tensors of a checkpoint, or of the newest valid one under a root.

    Returns:
        The checkpoint's own folder, the tensors without their `model.`, the values of its state, and how many tensors
        of other namespaces were left alone.

    Raises:
        SourceError: no checkpoint is valid; the reason of each is given.
    """
    reasons = []
    for step in [folder] if (folder / "COMMIT").exists() else _steps(folder):
        try:
            return step, *_open(step)
        except SourceError as error:
            reasons.append(str(error))
            LOGGER.warning("skipped: %s", error)
    raise SourceError("; ".join(reasons) or f"{folder}: no checkpoint")


def commit_checkpoint(
    folder: Path, step: int, entries: Iterable[tuple[str, Tensor, int]], values: dict[str, Any]
) -> None:
    """Writes index.json, state.json and COMMIT beside a finished `rank-00000.safetensors`.

    Args:
        folder: the checkpoint's folder.
        step: its step.
        entries: each tensor's name in the file, the tensor, and the crc32 of its bytes.
        values: what state.json holds.
    """
    file = folder / SHARD
    with file.open("rb") as stream:
        start = stream.read(8)
        header = start + stream.read(int.from_bytes(start, "little"))
    about = {"bytes": file.stat().st_size, "header_bytes": len(header), "header_checksum": _crc(zlib.crc32(header))}
    tensors = {}
    for name, tensor, crc in entries:
        chunk = {"file": SHARD, "key": name, "offset": [0] * len(tensor.shape), "shape": list(tensor.shape)}
        tensors[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "chunks": [{**chunk, "checksum": _crc(crc)}],
        }
    index = {"format": "ms-ckpt.index", "version": 1, "step": step, "files": {SHARD: about}, "tensors": tensors}
    state = {"format": "ms-ckpt.state", "version": 1, "step": step, "values": values}
    commit = "ms-ckpt.commit 1\n"
    for name, content in (("index.json", index), ("state.json", state)):
        text = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
        _write(folder / name, text)
        commit += f"sha256:{hashlib.sha256(text).hexdigest()} {name}\n"
    _write(folder / "COMMIT", commit.encode())


def _steps(root: Path) -> list[Path]:
    found = [(int(match[1]), path) for path in root.iterdir() if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _open(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    index, state = _read_documents(folder)
    try:
        return (
            _open_index(folder, index),
            state["values"],
            sum(not _is_weight(name) for name in index["tensors"]),
        )
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise SourceError(f"{folder / 'index.json'}: not as contract checkpoint has it ({error!r:.100})") from error


def _read_documents(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    commit = "ms-ckpt.commit 1\n"
    documents = []
    for name, kind in (("index.json", "ms-ckpt.index"), ("state.json", "ms-ckpt.state")):
        values = read_json(folder / name)
        found = (values.get("format"), values.get("version"))
        if found != (kind, 1):
            raise SourceError(f"{folder / name}: format {found[0]!r} version {found[1]!r}, expected {kind!r} version 1")
        documents.append(values)
        commit += f"sha256:{hashlib.sha256((folder / name).read_bytes()).hexdigest()} {name}\n"
    if not (folder / "COMMIT").is_file() or (folder / "COMMIT").read_bytes() != commit.encode():
        raise SourceError(
            f"{folder}: COMMIT is missing or does not fit index.json and state.json; the checkpoint is invalid"
        )
    return documents[0], documents[1]


def _open_index(folder: Path, index: dict[str, Any]) -> dict[str, Tensor]:
    expected = {"COMMIT", "index.json", "state.json", *index["files"]}
    found = {path.name for path in folder.iterdir()}
    if found != expected:
        raise SourceError(f"{folder}: unexpected or missing files: {', '.join(sorted(found ^ expected))}")
    files = {}
    for name, about in index["files"].items():
        path = folder / name
        if not _FILE.fullmatch(name):
            raise SourceError(f"{folder / 'index.json'}: file {name!r:.100}, expected a name like {SHARD}")
        check_inside(path)
        if path.stat().st_size != about["bytes"]:
            raise SourceError(f"{path}: {path.stat().st_size} bytes, expected {about['bytes']}")
        with path.open("rb") as stream:
            if _crc(zlib.crc32(stream.read(about["header_bytes"]))) != about["header_checksum"]:
                raise SourceError(f"{path}: the header's checksum is wrong")
        files[name] = read_tensor_file(path)
    tensors = {}
    for name, entry in index["tensors"].items():
        if _is_weight(name):
            tensors[name.removeprefix("model.")] = _join(folder, name, entry, files)
    return tensors


def _is_weight(name: str) -> bool:
    """Whether a tensor is the model's and no counter, which belongs to the training state (contract `model`)."""
    return name.startswith("model.") and not name.startswith("model.counter.")


def _join(folder: Path, name: str, entry: dict[str, Any], files: dict[str, dict[str, Tensor]]) -> Tensor:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    chunks, covered = [], 0
    for chunk in entry["chunks"]:
        stored = files[chunk["file"]].get(chunk["key"])
        if stored is None or (stored.dtype, stored.shape) != (dtype, tuple(chunk["shape"])):
            raise SourceError(f"{folder / chunk['file']}: {chunk['key']} is not what index.json says")
        if _crc(checksum(stored)) != chunk["checksum"]:
            raise SourceError(f"{folder / chunk['file']}: {chunk['key']}: the bytes' checksum is wrong")
        place = tuple(slice(at, at + size) for at, size in zip(chunk["offset"], stored.shape, strict=True))
        if any(part.start < 0 or part.stop > size for part, size in zip(place, shape, strict=True)):
            raise SourceError(f"{folder / 'index.json'}: {name}: a chunk reaches beyond the tensor")
        chunks.append((place, stored))
        covered += stored.num_bytes
    whole = Tensor(dtype, shape, chunks[0][1].read)
    if covered != whole.num_bytes or _overlap([place for place, _ in chunks]):
        raise SourceError(f"{folder / 'index.json'}: {name}: the chunks do not tile the tensor")
    return whole if len(chunks) == 1 else Tensor(dtype, shape, partial(_read_chunks, dtype, shape, chunks))


def _overlap(places: list[tuple[slice, ...]]) -> bool:
    return any(
        all(a.start < b.stop and b.start < a.stop for a, b in zip(first, second, strict=True))
        for number, first in enumerate(places)
        for second in places[:number]
    )


def _read_chunks(dtype: str, shape: tuple[int, ...], chunks: list[tuple[tuple[slice, ...], Tensor]]) -> Words:
    words = np.empty(shape, WORD_OF_DTYPE[dtype])
    for place, stored in chunks:
        words[place] = stored.read()
    return words


def _crc(value: int) -> str:
    return f"crc32:{value:08x}"


def _write(path: Path, text: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
