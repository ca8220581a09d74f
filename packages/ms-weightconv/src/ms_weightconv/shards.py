"""The weights of a folder: one `model.safetensors`, or shards under an index, and nothing outside the folder."""

from collections import Counter
from pathlib import Path
from typing import Any

from ms_weightconv.errors import SourceError
from ms_weightconv.tensorfile import Tensor, parse_json, read_tensor_file

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_JSON_BYTES = 100_000_000

_TO_SAFETENSORS = (
    "download the model's safetensors files, or, where torch and transformers are installed, write them once with "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
)
_OTHER_KINDS = (
    ("pytorch_model*.bin*", "comes with {name}, a pickle, which is not read; " + _TO_SAFETENSORS),
    ("*.pth", "comes with {name}, a pickle, which is not read; " + _TO_SAFETENSORS),
    ("*.gguf", "comes with {name}; GGUF is not read; " + _TO_SAFETENSORS),
    ("*.ckpt", "comes with {name}; MindSpore's .ckpt is not read; save it as model.safetensors with config.json"),
    ("*.h5", "comes with {name}; TensorFlow weights are not read; " + _TO_SAFETENSORS),
    ("*.msgpack", "comes with {name}; Flax weights are not read; " + _TO_SAFETENSORS),
)


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


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Opens all weights of a folder.

    Raises:
        SourceError: there are none that can be read (with what is there instead), a shard is missing, extra to the
            index or damaged, or a name leads out of the folder.
    """
    single, index = folder / WEIGHTS_FILE, folder / INDEX_FILE
    if single.exists() and index.exists():
        raise SourceError(f"{folder}: holds both {WEIGHTS_FILE} and {INDEX_FILE}; remove the one that is out of date")
    if index.exists():
        return _read_index(folder, read_json(index))
    if single.is_symlink() or single.exists():
        check_inside(single)
        return read_tensor_file(single)
    raise SourceError(f"{folder}: {_what_is_there(folder)}")


def describe_other_kind(path: Path) -> str | None:
    """Why a file of another kind is not read and what to do, or None if its name tells nothing."""
    for pattern, text in _OTHER_KINDS:
        if path.match(pattern):
            return text.format(name=path.name)
    return None


def _what_is_there(folder: Path) -> str:
    for pattern, text in _OTHER_KINDS:
        if names := sorted(path.name for path in folder.glob(pattern)):
            return text.format(name=names[0])
    return f"no {WEIGHTS_FILE} and no {INDEX_FILE}"


def _read_index(folder: Path, index: dict[str, Any]) -> dict[str, Tensor]:
    path, weight_map = folder / INDEX_FILE, index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise SourceError(f"{path}: weight_map must map tensor names to file names")
    files = list(dict.fromkeys(value for value in weight_map.values() if isinstance(value, str)))
    if strange := [value for value in weight_map.values() if not isinstance(value, str)]:
        raise SourceError(f"{path}: weight_map holds {strange[0]!r:.100}, expected a file name")
    if outside := [name for name in files if not _is_plain(name)]:
        raise SourceError(
            f"{path}: {', '.join(map(repr, outside))}: expected plain names of safetensors files beside it"
        )
    if missing := [name for name in files if not (folder / name).exists()]:
        raise SourceError(f"{path}: names files that are missing: {', '.join(missing)}; fetch them into {folder}")
    tensors: dict[str, Tensor] = {}
    held: Counter[str] = Counter()
    misplaced = []
    for name in files:
        check_inside(folder / name)
        shard = read_tensor_file(folder / name)
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


def _is_plain(name: str) -> bool:
    return name == Path(name).name and "\\" not in name and "\0" not in name and name.endswith(".safetensors")
