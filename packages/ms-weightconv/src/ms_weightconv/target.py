"""An output folder: built under a temporary name beside its place, verified there, and published by one rename."""

import fcntl
import glob
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ms_weightconv.checkpoint import SHARD, commit_checkpoint, is_checkpoint
from ms_weightconv.ckptfile import read_ckpt_file, write_ckpt_file
from ms_weightconv.errors import ConfigError, TargetError
from ms_weightconv.progress import Progress
from ms_weightconv.shards import INDEX_FILE, WEIGHTS_FILE
from ms_weightconv.tensor import Tensor, checksum
from ms_weightconv.transfer import transfer
from ms_weightconv.words import CastLoss

LOGGER = logging.getLogger(__name__)
CKPT_FILE = "model.ckpt"
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
def staged_folder(target: Path, source: Path, *, is_overwritten: bool, plan: str = "") -> Iterator[Path]:
    """Gives a temporary folder beside `target` and renames it to `target` when the block ends without an error.

    An old target is replaced only then. After an error the temporary folder is gone and the old target untouched.
    A run that is interrupted or killed leaves the folder; the next one with the same plan is given it again.

    Args:
        target: the folder that is to appear.
        source: what is read; it must not be touched.
        is_overwritten: an old target may be replaced.
        plan: what tells one conversion from another, such as a hash.

    Raises:
        TargetError: the target is in use and `is_overwritten` is false, is no folder of a model, or holds the source;
            or another process is writing it.
    """
    _check_target(target, source, is_overwritten)
    target.parent.mkdir(parents=True, exist_ok=True)
    stage = target.parent / f".{target.name}.converting-{plan or secrets.token_hex(6)}"
    for other in target.parent.glob(f".{glob.escape(target.name)}.converting-*"):
        if other != stage:
            _remove_if_left(other)
    stage.mkdir(exist_ok=True)
    with _lock(stage, target):
        try:
            yield stage
            _flush_folder(stage)
            _publish(stage, target)
        except Exception:
            shutil.rmtree(stage, ignore_errors=True)
            raise
        except BaseException:
            LOGGER.warning("interrupted; the same command goes on from %s", stage)
            raise


@contextmanager
def _lock(stage: Path, target: Path) -> Iterator[None]:
    descriptor = os.open(stage, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TargetError(f"{target}: another process is converting into it; wait for it") from error
        yield
    finally:
        os.close(descriptor)


def _remove_if_left(stage: Path) -> None:
    """Removes what a run with another plan left, unless it is still at work."""
    with suppress(TargetError, OSError), _lock(stage, stage):
        shutil.rmtree(stage, ignore_errors=True)


def write_document(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON document and flushes it to the disk."""
    with path.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def write_weights(
    folder: Path,
    tensors: Mapping[str, Tensor],
    max_shard_size: int | None,
    writer: str,
    *,
    workers: int,
    is_shown: bool,
    losses: MutableMapping[str, CastLoss],
) -> dict[str, int]:
    """Writes `model.safetensors`, or shards with an index when they exceed `max_shard_size`, and reads them back.

    Args:
        folder: where to.
        tensors: what to write.
        max_shard_size: bytes of a shard; a larger tensor gets a shard of its own. None: one file whatever its size.
        writer: value of `format` in the files' metadata; transformers asks for "pt", MindSpore for "ms".
        workers: threads.
        is_shown: whether to show progress.
        losses: see `transfer`.

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
    files = dict(zip(names, shards, strict=True))
    return transfer(folder, files, {"format": writer}, workers=workers, is_shown=is_shown, losses=losses)


def write_ckpt(folder: Path, tensors: Mapping[str, Tensor], *, is_shown: bool) -> dict[str, int]:
    """Writes `model.ckpt`, which `mindspore.load_checkpoint` reads, and reads it back; returns each tensor's crc32.

    Its checksum runs over the whole file, so it is written by one thread from its beginning to its end.
    """
    _check_space(folder, tensors)
    size = sum(tensor.num_bytes for tensor in tensors.values())
    checksums = {}
    with Progress("convert", size, is_shown) as progress:
        for name, num_bytes, crc in write_ckpt_file(folder / CKPT_FILE, tensors):
            checksums[name] = crc
            progress.add(num_bytes)
    with Progress("verify", size, is_shown) as progress:
        written, _ = read_ckpt_file(folder / CKPT_FILE)
        for name, tensor in tensors.items():
            found = written.get(name)
            if found is None or (found.dtype, found.shape) != (tensor.dtype, tensor.shape):
                raise TargetError(f"{folder / CKPT_FILE}: {name} did not come back as it was written")
            if checksum(found) != checksums[name]:
                raise TargetError(f"{folder / CKPT_FILE}: {name} came back with other bytes; is the disk sound?")
            progress.add(tensor.num_bytes)
    return checksums


def write_checkpoint(
    root: Path,
    tensors: Mapping[str, Tensor],
    values: dict[str, Any],
    *,
    workers: int,
    is_shown: bool,
    losses: MutableMapping[str, CastLoss],
) -> dict[str, int]:
    """Writes `step-00000000/` of contract `checkpoint` with model tensors only; returns the crc32 of each tensor."""
    _check_space(root, tensors)
    folder = root / "step-00000000"
    folder.mkdir(exist_ok=True)
    named = {f"model.{name}": tensor for name, tensor in tensors.items()}
    checksums = transfer(folder, {SHARD: named}, {}, workers=workers, is_shown=is_shown, losses=losses)
    commit_checkpoint(folder, 0, [(name, named[name], checksums[name]) for name in named], values)
    _flush_folder(folder)
    return {name.removeprefix("model."): crc for name, crc in checksums.items()}


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
    held = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())  # of an earlier run
    needed = sum(tensor.num_bytes for tensor in tensors.values()) - held
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
    is_model = any((target / name).exists() for name in ("config.json", "adapter_config.json"))
    if not is_model and not is_checkpoint(target):
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
