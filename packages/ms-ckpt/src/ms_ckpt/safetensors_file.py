"""Safetensors files of others: single ones, and folders with an index as Hugging Face lays them out.

Such files have no checksums. What can be checked is: every byte accounted for, every name where the index says.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ms_ckpt.durable import sync_folder, write_file
from ms_ckpt.errors import InvalidCheckpointError, ValuesError
from ms_ckpt.shard_writer import write_shard
from ms_ckpt.tensor import NUMPY_DTYPES, LazyTensor, Source, Tensor, as_bytes, form_of, num_bytes, returned_form

INDEX_NAME = "model.safetensors.index.json"
_LARGEST_HEADER = 100 << 20  # as the safetensors library limits it


def read_safetensors_file(path: Path) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """The tensors of a file, read when they are needed, and its metadata.

    Raises:
        InvalidCheckpointError: not such a file, cut short, or with bytes that belong to no tensor.
        ValuesError: a tensor of a type that is not read here.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(8)
            if head.startswith(b"version "):
                raise ValueError("a Git LFS pointer; fetch the file itself: git lfs pull")
            length = int.from_bytes(head, "little")
            if len(head) < 8 or not 2 <= length <= min(_LARGEST_HEADER, size - 8):
                raise ValueError(f"a header of {length} bytes in a file of {size}")
            header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
        metadata = header.pop("__metadata__", {})
        _check_layout(header, size - 8 - length)
    except OSError as error:
        raise InvalidCheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidCheckpointError(f"{path}: not a safetensors file: {error}") from error
    unknown = [f"{name} ({entry['dtype']})" for name, entry in header.items() if entry["dtype"] not in NUMPY_DTYPES]
    if unknown:
        raise ValuesError(f"{path}: types that are not read here: {', '.join(unknown)}")
    return {name: _lazy(path, name, entry, 8 + length) for name, entry in header.items()}, dict(metadata)


def read_safetensors_folder(folder: Path, index_name: str = INDEX_NAME) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """The tensors of all files that an index names, and the metadata of the first.

    Raises InvalidCheckpointError that lists everything wrong: missing files, tensors that are not where the index says,
    tensors that it does not name.
    """
    path = folder / index_name
    try:
        weight_map: dict[str, str] = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)[
            "weight_map"
        ]
        names = sorted(set(weight_map.values()))
        if any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise ValueError(f"weight_map names files outside the folder: {names}")
    except OSError as error:
        raise InvalidCheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidCheckpointError(f"{path}: not an index: {type(error).__name__}: {error}") from error
    tensors: dict[str, LazyTensor] = {}
    metadata: dict[str, str] = {}
    problems = []
    for name in names:
        if not (folder / name).is_file():
            problems.append(f"{name}: missing")
            continue
        found, metadata = read_safetensors_file(folder / name)
        for tensor in sorted(found.keys() | {key for key, file in weight_map.items() if file == name}):
            if tensor not in found:
                problems.append(f"{name}: holds no {tensor}")
            elif weight_map.get(tensor) != name:
                problems.append(f"{name}: holds {tensor}, which the index does not look for there")
            else:
                tensors[tensor] = found[tensor]
    if problems:
        raise InvalidCheckpointError("\n  ".join([f"{path}: index and files differ:", *problems]))
    return tensors, metadata


def write_safetensors_file(path: Path, tensors: Mapping[str, Source], metadata: Mapping[str, str]) -> None:
    """Writes one new, fsynced file; the format `pt` in its metadata is what transformers insists on."""
    write_shard(path, tensors, metadata={"format": "pt", **metadata}, has_pieces=False)


def write_safetensors_folder(
    folder: Path, tensors: Mapping[str, Source], metadata: Mapping[str, str], max_shard_bytes: int
) -> None:
    """Fills an empty folder with files of at most `max_shard_bytes` (a larger tensor has its own) and their index.

    A folder with one file has no index, as Hugging Face does it.
    """
    shards = _deal(tensors, max_shard_bytes)
    if len(shards) == 1:
        write_safetensors_file(folder / "model.safetensors", tensors, metadata)
        sync_folder(folder)
        return
    weight_map: dict[str, str] = {}
    total = 0
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors_file(folder / file, {name: tensors[name] for name in names}, metadata)
        weight_map |= dict.fromkeys(names, file)
        total += sum(num_bytes(*form_of(name, tensors[name])) for name in names)
    document = {
        "metadata": {"total_size": total},
        "weight_map": {name: weight_map[name] for name in sorted(weight_map)},
    }
    write_file(folder / INDEX_NAME, (json.dumps(document, indent=2) + "\n").encode())
    sync_folder(folder)


def _deal(tensors: Mapping[str, Source], most: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        size = num_bytes(*form_of(name, tensor))
        if shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _check_layout(header: dict[str, Any], size: int) -> None:
    """Raises ValueError unless the tensors fill the data without hole or overlap, each as long as its shape says."""
    place = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if any(type(extent) is not int or extent < 0 for extent in (*shape, start, stop)):
            raise ValueError(f"{name}: shape {shape}, offsets {start} to {stop}")
        if start != place:
            raise ValueError(f"{name}: begins at byte {start}, expected {place}")
        if dtype in NUMPY_DTYPES and stop - start != num_bytes(dtype, tuple(shape)):
            raise ValueError(f"{name}: {stop - start} bytes for {dtype} {shape}")
        place = stop
    if place != size:
        raise ValueError(f"tensors cover {place} of {size} bytes")


def _lazy(path: Path, name: str, entry: dict[str, Any], data_start: int) -> LazyTensor:
    dtype, shape, start = entry["dtype"], tuple(entry["shape"]), data_start + entry["data_offsets"][0]

    def read() -> Tensor:
        words = np.empty(shape, NUMPY_DTYPES[dtype])
        into = as_bytes(words)
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            while len(into):  # a call reads 2 GB at most
                count = file.readinto(into)
                if not count:
                    raise InvalidCheckpointError(f"{path}: {name}: the file was cut short while it was read")
                into = into[count:]
        return returned_form(dtype, words)

    return LazyTensor(dtype=dtype, shape=shape, read=read)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result
