"""The weights of a folder: one file, or shards under an index, and nothing outside the folder."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_weightconv.ckptfile import read_ckpt_file
from ms_weightconv.errors import SourceError
from ms_weightconv.tensor import Tensor
from ms_weightconv.tensorfile import parse_json, read_tensor_file
from ms_weightconv.torchfile import read_torch_file

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_JSON_BYTES = 100_000_000

_TO_SAFETENSORS = (
    "download the model's safetensors files, or, where torch and transformers are installed, write them once with "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
)
_OTHER_KINDS = (
    ("model-*.safetensors", "{name} is a shard whose index model.safetensors.index.json is missing; fetch it as well"),
    ("pytorch_model-*.bin", "{name} is a shard whose index pytorch_model.bin.index.json is missing; fetch it as well"),
    ("*.pth", "comes with {name}, Meta's own files; " + _TO_SAFETENSORS),
    ("*.h5", "comes with {name}; TensorFlow weights are not read; " + _TO_SAFETENSORS),
    ("*.msgpack", "comes with {name}; Flax weights are not read; " + _TO_SAFETENSORS),
)
# What mindspore.save_checkpoint adds when it is given a training cell instead of the network.
_TRAINING_STATE = re.compile(
    r"(moment[s12]|accu_grads|adam_[mv]|accum|stat)\.|(global_step|learning_rate|beta[12]_power|scale_sense|step_num|"
    r"epoch_num|loss_scale|current_iterator_step|last_overflow_iterator_step|weight_decay)$"
)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The opened weights of a folder or file."""

    tensors: dict[str, Tensor]
    """By name."""
    kind: str
    """`safetensors`, `bin` or `ckpt`."""
    notes: tuple[str, ...] = ()
    """What a user should know."""


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object from a file of a model's folder; raises SourceError if it is none, or far too large."""
    check_inside(path)
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise SourceError(f"{path}: {size} bytes; expected a JSON file of at most {MAX_JSON_BYTES}")
        values = parse_json(path.read_bytes(), str(path))
    except FileNotFoundError as error:
        raise SourceError(f"{path}: no such file") from error
    if not isinstance(values, dict):
        raise SourceError(f"{path}: expected an object, found {type(values).__name__}")
    return values


def check_inside(path: Path) -> None:
    """Raises SourceError if a file is a link that leads out of its folder.

    The links that Hugging Face's cache makes from `snapshots/REVISION/` to `blobs/` are allowed.
    """
    real, folder = path.resolve(), path.parent.resolve()
    allowed = [folder]
    if folder.parent.name == "snapshots":
        allowed.append(folder.parent.parent / "blobs")
    if real.parent not in allowed:
        raise SourceError(f"{path}: a link to {real}, outside the folder; copy the file into the folder")


def read_weights(folder: Path) -> Weights:
    """Opens all weights of a folder: safetensors if there are any, else `pytorch_model.bin`, else one `.ckpt`.

    Raises:
        SourceError: there are none that can be read (with what is there instead), a shard is missing, extra to the
            index or damaged, or a name leads out of the folder.
    """
    for kind, single_name in (("safetensors", WEIGHTS_FILE), ("bin", "pytorch_model.bin")):
        single, index = folder / single_name, folder / f"{single_name}.index.json"
        if single.exists() and index.exists():
            raise SourceError(
                f"{folder}: holds both {single.name} and {index.name}; remove the one that is out of date"
            )
        if index.exists():
            return Weights(tensors=_read_index(index, read_json(index), kind), kind=kind)
        if single.is_symlink() or single.exists():
            return read_weights_file(single)
    found = sorted(folder.glob("*.ckpt"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:5])
        raise SourceError(f"{folder}: holds several .ckpt files ({names}); give the one that is meant")
    if found:
        return read_weights_file(found[0])
    raise SourceError(f"{folder}: {_what_is_there(folder)}")


def read_weights_file(path: Path) -> Weights:
    """Opens one file of weights, whose kind its name tells; raises SourceError."""
    check_inside(path)
    if path.suffix == ".safetensors":
        return Weights(tensors=read_tensor_file(path), kind="safetensors")
    if path.suffix in (".bin", ".pt"):
        return Weights(tensors=read_torch_file(path), kind="bin")
    if path.suffix == ".ckpt":
        return _without_training_state(*read_ckpt_file(path))
    raise SourceError(f"{path}: {describe_other_kind(path) or 'not a file of weights that is read here'}")


def describe_other_kind(path: Path) -> str | None:
    """Why a file of another kind is not read and what to do, or None if its name tells nothing."""
    for pattern, text in _OTHER_KINDS:
        if path.match(pattern):
            return text.format(name=path.name)
    return None


def _without_training_state(tensors: dict[str, Tensor], texts: list[str]) -> Weights:
    left = [name for name in tensors if _TRAINING_STATE.match(name)] + texts
    notes = (f"left out of the .ckpt, no weights: {', '.join(sorted(left))}",) if left else ()
    return Weights(tensors={key: tensors[key] for key in tensors if key not in left}, kind="ckpt", notes=notes)


def _what_is_there(folder: Path) -> str:
    for pattern, text in _OTHER_KINDS:
        if names := sorted(path.name for path in folder.glob(pattern)):
            return text.format(name=names[0])
    return f"no {WEIGHTS_FILE}, no {INDEX_FILE}, no pytorch_model.bin and no .ckpt"


def _read_index(path: Path, index: dict[str, Any], kind: str) -> dict[str, Tensor]:
    folder, weight_map = path.parent, index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{path}: weight_map must map tensor names to file names")
    files = list(dict.fromkeys(value for value in weight_map.values() if isinstance(value, str)))
    if strange := [value for value in weight_map.values() if not isinstance(value, str)]:
        raise SourceError(f"{path}: weight_map holds {strange[0]!r:.100}, expected a file name")
    if outside := [name for name in files if not _is_plain(name, kind)]:
        raise SourceError(f"{path}: {', '.join(map(repr, outside))}: expected plain names of {kind} files beside it")
    if missing := [name for name in files if not (folder / name).exists()]:
        raise SourceError(f"{path}: names files that are missing: {', '.join(missing)}; fetch them into {folder}")
    tensors: dict[str, Tensor] = {}
    held: Counter[str] = Counter()
    misplaced = []
    for name in files:
        shard = read_weights_file(folder / name).tensors
        held.update(list(shard))
        misplaced += [
            f"{key} is in {name}, not in {weight_map.get(key, 'the index')}"
            for key in shard
            if weight_map.get(key) != name
        ]
        tensors |= shard
    misplaced += [f"{key} is not in {weight_map[key]}" for key in weight_map if key not in held]
    misplaced += [f"{key} is in {count} files" for key, count in held.items() if count > 1]
    if misplaced:
        raise SourceError(f"{path}: index and shards do not match: {'; '.join(misplaced)}")
    return tensors


def _is_plain(name: str, kind: str) -> bool:
    return name == Path(name).name and "\\" not in name and "\0" not in name and name.endswith(f".{kind}")
