"""An output folder: built under a temporary name beside its place, verified there, and published by one rename."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ms_weightconv.checkpoint import SHARD, commit_checkpoint, is_checkpoint
from ms_weightconv.errors import ConfigError, TargetError
from ms_weightconv.progress import Progress
from ms_weightconv.shards import INDEX_FILE, WEIGHTS_FILE
from ms_weightconv.tensor import Tensor, checksum
from ms_weightconv.tensorfile import read_tensor_file, write_tensor_file

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(size: int | str) -> int:
    """Bytes of a size such as 5000000000, "5GB" or "500MiB"; raises ConfigError on anything else."""
    if isinstance(size, str):
        text = size.strip().upper()
        number = text.rstrip("KMGTIB")
        unit = text[len(number) :]
        if unit in _UNITS and number.strip().isdecimal():
            size = int(number) * _UNITS[unit]
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"max_shard_size: found {size!r}, expected a number of bytes from 1, or one like 5GB, 500MiB")
    return size


@contextmanager
def staged_folder(target: Path, source: Path, *, is_overwritten: bool) -> Iterator[Path]:
    """Gives a temporary folder beside `target` and renames it to `target` when the block ends without an error.

    An old target is replaced only then. After an error the temporary folder is gone and the old target untouched.

    Raises:
        TargetError: the target is in use and `is_overwritten` is false, is no folder of a model, or holds the source.
    """
    _check_target(target, source, is_overwritten)
    target.parent.mkdir(parents=True, exist_ok=True)
    stage = target.parent / f".{target.name}.converting-{os.getpid()}-{secrets.token_hex(4)}"
    stage.mkdir()
    try:
        yield stage
        _flush_folder(stage)
        _publish(stage, target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def write_document(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON document and flushes it to the disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def write_weights(
    folder: Path, tensors: Mapping[str, Tensor], max_shard_size: int | None, writer: str, is_shown: bool
) -> dict[str, int]:
    """Writes `model.safetensors`, or shards with an index when they exceed `max_shard_size`, and reads them back.

    Args:
        folder: where to.
        tensors: what to write.
        max_shard_size: bytes of a shard; a larger tensor gets a shard of its own. None: one file whatever its size.
        writer: value of `format` in the files' metadata; transformers asks for "pt".
        is_shown: whether to show progress.

    Returns:
        The crc32 of each tensor.
    """
    _check_space(folder, tensors)
    shards = _divide(tensors, max_shard_size)
    names = [WEIGHTS_FILE]
    if len(shards) > 1:
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
        weight_map = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        size = sum(tensor.num_bytes for tensor in tensors.values())
        write_document(folder / INDEX_FILE, {"metadata": {"total_size": size}, "weight_map": weight_map})
    return _write_files(folder, dict(zip(names, shards, strict=True)), {"format": writer}, is_shown)


def write_checkpoint(
    root: Path, tensors: Mapping[str, Tensor], values: dict[str, Any], is_shown: bool
) -> dict[str, int]:
    """Writes `step-00000000/` of contract `checkpoint` with model tensors only; returns the crc32 of each tensor."""
    _check_space(root, tensors)
    folder = root / "step-00000000"
    folder.mkdir()
    named = {f"model.{name}": tensor for name, tensor in tensors.items()}
    checksums = _write_files(folder, {SHARD: named}, {}, is_shown)
    commit_checkpoint(folder, 0, [(name, named[name], checksums[name]) for name in named], values)
    _flush_folder(folder)
    return {name.removeprefix("model."): crc for name, crc in checksums.items()}


def _write_files(
    folder: Path, files: Mapping[str, Mapping[str, Tensor]], metadata: Mapping[str, str], is_shown: bool
) -> dict[str, int]:
    size = sum(tensor.num_bytes for shard in files.values() for tensor in shard.values())
    checksums: dict[str, int] = {}
    with Progress("convert", size, is_shown) as progress:
        for name, shard in files.items():
            for key, num_bytes, crc in write_tensor_file(folder / name, shard, metadata):
                checksums[key] = crc
                progress.add(num_bytes)
    with Progress("verify", size, is_shown) as progress:
        for name, shard in files.items():
            _verify(folder / name, shard, checksums, progress)
    return checksums


def _verify(path: Path, shard: Mapping[str, Tensor], checksums: Mapping[str, int], progress: Progress) -> None:
    written = read_tensor_file(path)
    for key, tensor in shard.items():
        found = written.get(key)
        if found is None or (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
            raise TargetError(f"{path}: {key} did not come back as it was written")
        if checksum(found) != checksums[key]:
            raise TargetError(f"{path}: {key} came back with other bytes than were written; is the disk sound?")
        progress.add(tensor.num_bytes)


def _divide(tensors: Mapping[str, Tensor], max_shard_size: int | None) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if max_shard_size is not None and shards[-1] and size + tensor.num_bytes > max_shard_size:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.num_bytes
    return shards


def _check_space(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    needed = sum(tensor.num_bytes for tensor in tensors.values())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TargetError(f"{folder.parent}: {needed:,} bytes are needed, {free:,} are free")


def _check_target(target: Path, source: Path, is_overwritten: bool) -> None:
    real, read = target.resolve(), source.resolve()
    if real == read or real in read.parents or read in real.parents:
        raise TargetError(f"{target}: the same folder as the source {source}, or one inside the other; choose another")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise TargetError(f"{target}: not a folder; choose another")
    if not target.exists() or not any(target.iterdir()):
        return
    if not is_overwritten:
        raise TargetError(f"{target}: in use; choose another, or replace it (--overwrite)")
    if not (target / "config.json").exists() and not is_checkpoint(target):
        raise TargetError(f"{target}: in use and not a model's folder (no config.json); it is not replaced")


def _publish(stage: Path, target: Path) -> None:
    old = target.parent / f".{target.name}.replaced-{os.getpid()}-{secrets.token_hex(4)}"
    had_old = target.exists()
    if had_old:
        target.rename(old)
    try:
        stage.rename(target)
    except OSError:
        if had_old:
            old.rename(target)
        raise
    _flush_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
