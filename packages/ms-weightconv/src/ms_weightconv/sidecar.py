"""The file `huggingface.json` beside a converted model: what contract `model` has no place for, kept for the way back.

It holds the original config.json and generation_config.json as they were. The way back writes the original config
word for word where the model's config still means the same, and otherwise the original with the changed keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_weightconv.contract import Config
from ms_weightconv.errors import ConfigError, SourceError
from ms_weightconv.family import Family
from ms_weightconv.mapping import changed_keys, from_huggingface, to_huggingface
from ms_weightconv.shards import read_json
from ms_weightconv.words import NAME_OF_DTYPE

SIDECAR_FILE = "huggingface.json"
FORMAT, VERSION = "ms-weightconv.huggingface", 1


@dataclass(frozen=True, kw_only=True)
class Sidecar:
    """The Hugging Face documents that a model came with."""

    config: dict[str, Any]
    """Content of config.json."""
    generation: dict[str, Any] | None
    """Content of generation_config.json, if there was one."""


def read_sidecar(folder: Path) -> Sidecar | None:
    """Reads the side file of a folder, None if it has none; raises SourceError on another format or version."""
    path = folder / SIDECAR_FILE
    if not path.exists():
        return None
    values = read_json(path)
    found = (values.get("format"), values.get("version"))
    if found != (FORMAT, VERSION):
        raise SourceError(f"{path}: format {found[0]!r} version {found[1]!r}, expected {FORMAT!r} version {VERSION}")
    config, generation = values.get("config"), values.get("generation_config")
    if not isinstance(config, dict) or not isinstance(generation, dict | None):
        raise SourceError(f"{path}: config and generation_config must be objects")
    return Sidecar(config=config, generation=generation)


def write_sidecar(sidecar: Sidecar) -> dict[str, Any]:
    """The content of the side file."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "config": sidecar.config,
        "generation_config": sidecar.generation,
    }


def restore_huggingface(
    family: Family, config: Config, sidecar: Sidecar | None, dtypes: set[str], what: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config.json and generation_config.json of a model.

    Args:
        family: the family to be written.
        config: the model's config, of contract `model`.
        sidecar: the documents that it came with; used where they are of the same family.
        dtypes: the float dtypes of the tensors that will be written.
        what: begins error messages.

    Raises:
        ConfigError: the family cannot say what the config says.
    """
    fresh = to_huggingface(family, config, what)
    name = NAME_OF_DTYPE.get(next(iter(dtypes))) if len(dtypes) == 1 else None
    original = sidecar if sidecar and sidecar.config.get("model_type") == family.name else None
    theirs = fresh if original is None else _merge(family, config, fresh, original, what)
    if original is None or (name and ("dtype" in theirs or "torch_dtype" in theirs)):
        key = "dtype" if "dtype" in theirs else "torch_dtype"
        theirs |= {key: name} if name else {}
    generation = dict(original.generation or {}) if original else {}
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if config[key] is not None and not _same_ids(generation.get(key), config[key]):
            generation[key] = config[key]
        if config[key] is None:
            generation.pop(key, None)
    return theirs, generation


def _merge(family: Family, config: Config, fresh: Mapping[str, Any], original: Sidecar, what: str) -> dict[str, Any]:
    theirs = dict(original.config)
    try:
        meant: Mapping[str, Any] = from_huggingface(family, theirs, original.generation, what).config
    except ConfigError:
        meant = {}
    for line in family.fields:
        if changed_keys(line, meant, config):
            for key in line.their_keys:
                theirs.pop(key, None)
            theirs |= {key: fresh[key] for key in line.their_keys if key in fresh}
    return theirs


def _same_ids(first: Any, second: Any) -> bool:
    return (first if isinstance(first, list) else [first]) == (second if isinstance(second, list) else [second])
