"""From one kind of checkpoint to another: this package's, MindSpore's `.ckpt`, safetensors, Hugging Face folders."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from ms_ckpt.cast import FLOATS, cast
from ms_ckpt.commit import STATE_FORMAT, state_bytes
from ms_ckpt.config import CheckpointConfig
from ms_ckpt.document import from_bytes
from ms_ckpt.durable import sync_folder
from ms_ckpt.errors import CkptError, InvalidCheckpointError, MismatchError, SaveError
from ms_ckpt.folder import open_folder
from ms_ckpt.mindspore_file import read_mindspore_file, write_mindspore_file
from ms_ckpt.rank_files import read_rank_files
from ms_ckpt.rules import LoadRules, chosen_names
from ms_ckpt.safetensors_file import (
    INDEX_NAME,
    read_safetensors_file,
    read_safetensors_folder,
    write_safetensors_file,
    write_safetensors_folder,
)
from ms_ckpt.staging import publish, staging_folder, sweep_orphans
from ms_ckpt.store import CheckpointStore
from ms_ckpt.tensor import LazyTensor, Tensor

KINDS = ("checkpoint", "mindspore", "safetensors", "huggingface")
_STATE_KEY = "ms-ckpt.state"
"""Under this string other formats carry `state.json`, so that step and values come back."""
_STRINGS = "strings"
"""Where the values hold the strings of a `.ckpt` file."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a conversion carries over."""

    tensors: dict[str, LazyTensor]
    values: dict[str, Any]
    step: int | None
    """None where the source does not say."""


def convert(
    source: Path,
    target: Path,
    *,
    to: str,
    rules: LoadRules | None = None,
    dtype: str | None = None,
    step: int | None = None,
    strategy: Path | None = None,
    files: str = "*",
    max_shard_bytes: int = 5_000_000_000,
    replace: bool = False,
) -> Contents:
    """Converts a checkpoint tensor by tensor; what is written appears whole or not at all. Returns what was written.

    Args:
        source: A checkpoint or root of this package, a `.ckpt` or `.safetensors` file, a Hugging Face folder, or a
            folder of MindSpore's rank folders (with `strategy`).
        target: The file, the folder (`huggingface`) or the root (`checkpoint`) to write.
        to: One of `KINDS`.
        rules: Which tensors to take (`only`), and under which names (`renames`).
        dtype: What all floating tensors become (F32, F16, BF16, F64); refused where a value does not fit.
        step: The step of a new checkpoint; by default the source's, else 0.
        strategy: MindSpore's strategy file or folder, for a source of several ranks.
        files: Which file of a rank's folder to take.
        max_shard_bytes: The size of a file of a Hugging Face folder.
        replace: Replace the target if it exists.

    Raises:
        InvalidCheckpointError: the source is damaged, or nothing of these kinds.
        MismatchError, ValuesError: a rename, cast or type that cannot be.
        SaveError: the target exists or cannot be written; it is as it was.
    """
    with _opened(source, strategy, files) as found:
        names = chosen_names(found.tensors, rules or LoadRules(), str(source))
        if found.tensors and not names:
            raise MismatchError(f"{source}: no tensor fits {', '.join((rules or LoadRules()).only)}")
        tensors = {wanted: _cast(wanted, found.tensors[stored], dtype) for wanted, stored in names.items()}
        contents = Contents(tensors=tensors, values=found.values, step=found.step if step is None else step)
        try:
            _write(target, to, contents, max_shard_bytes, replace=replace)
        except OSError as error:
            raise SaveError(f"{target}: was not written: {error}") from error
    return contents


@contextmanager
def _opened(source: Path, strategy: Path | None, files: str) -> Iterator[Contents]:
    if strategy is not None:
        yield _foreign(*read_rank_files(source, strategy, files))
    elif source.suffix == ".ckpt" and source.is_file():
        yield _foreign(*read_mindspore_file(source))
    elif source.suffix == ".safetensors" and source.is_file():
        yield _foreign(*read_safetensors_file(source), has_strings=False)
    elif (source / INDEX_NAME).is_file():
        yield _foreign(*read_safetensors_folder(source), has_strings=False)
    elif (source / "model.safetensors").is_file():
        yield _foreign(*read_safetensors_file(source / "model.safetensors"), has_strings=False)
    elif source.is_dir() and any(source.glob("rank_*")):
        raise CkptError(f"{source}: holds the files of several ranks; give the strategy of the training (--strategy)")
    elif source.is_dir():
        from ms_ckpt.listing import newest_valid

        with open_folder(newest_valid(source)) as folder:
            if folder.index.rank is not None:
                raise CkptError(
                    f"{folder.path}: only rank {folder.index.rank}'s part; merge the parts first: ms-ckpt merge"
                )
            tensors = {
                name: LazyTensor(dtype=tensor.dtype, shape=tensor.shape, read=lambda name=name: folder.read(name))  # type: ignore[misc]
                for name, tensor in folder.index.tensors.items()
            }
            yield Contents(tensors=tensors, values=folder.values, step=folder.step)
    else:
        raise InvalidCheckpointError(
            f"{source}: expected a checkpoint or its root, a .ckpt or .safetensors file, or a folder with {INDEX_NAME} "
            "or model.safetensors"
        )


def _foreign(tensors: dict[str, LazyTensor], texts: Mapping[str, str], *, has_strings: bool = True) -> Contents:
    """Contents from a format that knows no values: those that an earlier conversion put there, else its strings."""
    if _STATE_KEY in texts:
        state = from_bytes(texts[_STATE_KEY].encode(), _STATE_KEY, format_name=STATE_FORMAT)
        return Contents(tensors=tensors, values=dict(state["values"]), step=int(state["step"]))
    values = {_STRINGS: dict(texts)} if has_strings and texts else {}
    return Contents(tensors=tensors, values=values, step=None)


def _cast(name: str, source: LazyTensor, dtype: str | None) -> LazyTensor:
    if dtype is None or source.dtype == dtype or source.dtype not in FLOATS:
        return source

    def read() -> Tensor:
        return cast(source.read(), dtype, name)

    return LazyTensor(dtype=dtype, shape=source.shape, read=read)


def _write(target: Path, to: str, contents: Contents, max_shard_bytes: int, *, replace: bool) -> None:
    tensors = contents.tensors
    if to == "checkpoint":
        store = CheckpointStore(target, CheckpointConfig(keep_last=0))
        store.save(contents.step or 0, tensors, contents.values, replace=replace)
        return
    if target.exists() and not replace:
        raise SaveError(f"{target}: exists; give --replace to write it anew")
    texts = {}
    if contents.step is not None:
        texts[_STATE_KEY] = json.dumps(json.loads(state_bytes(contents.step, contents.values)))
    target.parent.mkdir(parents=True, exist_ok=True)
    if to == "huggingface":
        _refuse_other_files(target)
        sweep_orphans(target.parent)
        with staging_folder(target.parent, contents.step or 0) as staged:
            write_safetensors_folder(staged, tensors, texts, max_shard_bytes)
            publish(staged, target)
        return
    unfinished = target.with_name(f".{target.name}.{token_hex(4)}.writing")
    try:
        if to == "mindspore":
            write_mindspore_file(unfinished, tensors, {**contents.values.get(_STRINGS, {}), **texts})
        else:
            write_safetensors_file(unfinished, tensors, texts)
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    sync_folder(target.parent)


def _refuse_other_files(target: Path) -> None:
    """A folder that is replaced vanishes as a whole: it may hold nothing but weights."""
    names = sorted(entry.name for entry in target.iterdir()) if target.is_dir() else []
    others = [name for name in names if not (name == INDEX_NAME or (name[:5], name[-12:]) == ("model", ".safetensors"))]
    if others:
        raise SaveError(f"{target}: holds more than weights ({', '.join(others)}); write into a new folder")
