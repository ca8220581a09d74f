"""A folder that holds a model, in whichever of the three layouts: found out by what is in it, opened, and checked."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ms_weightconv.alignment import Alignment, align_to_contract, check_contract
from ms_weightconv.checkpoint import is_checkpoint, read_checkpoint
from ms_weightconv.contract import FORMAT, Config, read_config
from ms_weightconv.errors import SourceError
from ms_weightconv.families import FAMILIES, find_family
from ms_weightconv.family import Family
from ms_weightconv.gguffile import read_gguf_file
from ms_weightconv.ggufnames import config_of, find_table
from ms_weightconv.mapping import Mapped, from_huggingface
from ms_weightconv.mindformers import find_naming
from ms_weightconv.shards import Weights, check_inside, describe_other_kind, read_json, read_weights, read_weights_file
from ms_weightconv.sidecar import Sidecar, read_sidecar
from ms_weightconv.tensor import Tensor

_Asked = str | Family | None
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Source:
    """An opened folder."""

    path: Path
    """The folder that was given."""
    layout: str
    """`huggingface`, `mindspore` (names of contract `model`), `mindformers`, `gguf` or `checkpoint`."""
    family: Family | None
    """The family of a Hugging Face folder; of others, the one that `model_type` names, if it is known."""
    config: Config
    """The config in the terms of contract `model`."""
    tensors: Mapping[str, Tensor]
    """The tensors under the names of the folder's own layout."""
    sidecar: Sidecar | None
    """The Hugging Face documents."""
    table: Family | None = None
    """The table that leads from the tensors' names to those of contract `model`; None where they are those."""
    carried: tuple[str, ...] = ()
    """Hugging Face keys without effect on inference."""
    unknown: tuple[str, ...] = ()
    """Hugging Face keys that nothing here knows."""
    notes: tuple[str, ...] = ()
    """What a user should know."""

    def align(self) -> Alignment:
        """The tensors in the layout of contract `model`; raises RuleError if they and the config do not match."""
        if self.table is not None:
            return align_to_contract(self.table, self.config, self.tensors, str(self.path))
        return check_contract(self.config, self.tensors, str(self.path))

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Source":
        """The same folder with other tensors."""
        return replace(self, tensors=tensors)


def open_source(
    path: Path,
    *,
    family: _Asked = None,
    config: Path | Mapping[str, Any] | None = None,
    naming: str | None = None,
) -> Source:
    """Opens a folder of any layout.

    Args:
        path: the folder, or one file of weights; for checkpoints one `step-...` or the root of several, of which the
            newest valid one counts.
        family: the family of a Hugging Face folder whose `model_type` is none of the known.
        config: the config of contract `model` (a file, its folder, or its values) for a checkpoint that has none;
            for one file of weights, a config of either layout.
        naming: which of MindFormers' layouts it is, where names and `mindformers.json` do not say.

    Raises:
        SourceError: there is nothing that can be read.
        ConfigError: its config cannot be converted.
    """
    if path.is_file():
        return _open_file(path, family, config, naming)
    if not path.is_dir():
        raise SourceError(f"{path}: no such folder")
    if is_checkpoint(path):
        return _open_checkpoint(path, config)
    ggufs = sorted(path.glob("*.gguf"))
    if len(ggufs) == 1 and not any(path.glob("*.safetensors")) and not any(path.glob("pytorch_model*")):
        return _open_gguf(ggufs[0], family, config)
    if not (path / "config.json").exists():
        reasons = [found for file in sorted(path.iterdir()) if (found := describe_other_kind(file))]
        raise SourceError("; ".join([f"{path}: no config.json", *reasons[:1]]))
    values = read_json(path / "config.json")
    opened = _open_folder(path, path, values, family, read_weights(path))
    return _as_mindformers(opened, path, naming)


def _open_folder(path: Path, folder: Path, values: dict[str, Any], asked: _Asked, weights: Weights) -> Source:
    if "format" in values:
        return _open_ours(path, folder, values, weights)
    return _open_huggingface(path, folder, values, asked, weights)


def _as_mindformers(opened: Source, folder: Path, asked: str | None) -> Source:
    """The same source, read by one of MindFormers' tables if its tensors have such names."""
    naming = find_naming(opened.tensors, folder, asked)
    if naming is None:
        return opened
    sidecar = read_sidecar(folder) or opened.sidecar
    return replace(opened, layout="mindformers", table=naming, sidecar=sidecar)


def _open_file(path: Path, asked: _Asked, given: Path | Mapping[str, Any] | None, naming: str | None) -> Source:
    """One file of weights, with the config that was given or the one beside it."""
    if path.suffix == ".gguf":
        return _open_gguf(path, asked, given)
    if not isinstance(given, Mapping):
        file = path.parent / "config.json" if given is None else given / "config.json" if given.is_dir() else given
        if not file.exists():
            raise SourceError(f"{path}: no config.json beside it; give one (--config), or the folder that holds both")
        values, folder = read_json(file), file.parent
    else:
        values, folder = dict(given), path.parent
    opened = _open_folder(path, folder, values, asked, read_weights_file(path))
    return _as_mindformers(opened, folder, naming)


def _open_gguf(path: Path, asked: _Asked, given: Path | Mapping[str, Any] | None) -> Source:
    """A GGUF file, with the config that was given, else the one beside it, else what its own metadata say."""
    check_inside(path)
    content = read_gguf_file(path)
    table = find_table(content, path)
    file = path.parent / "config.json" if given is None else given
    if isinstance(file, Path):
        file = file / "config.json" if file.is_dir() else file
    if given is None and isinstance(file, Path) and not file.exists():
        opened = None
    else:
        values = dict(file) if isinstance(file, Mapping) else read_json(file)
        folder = file.parent if isinstance(file, Path) else path.parent
        opened = _open_folder(path, folder, values, asked, Weights(tensors={}, kind="gguf"))
    our_config = config_of(content, path) if opened is None else opened.config
    kinds = ", ".join(f"{count} of {kind}" for kind, count in content.quantized.items())
    notes = (f"dequantized to float32: {kinds}",) if kinds else ()
    return Source(
        path=path,
        layout="gguf",
        family=FAMILIES.get(our_config["model_type"]),
        config=our_config,
        tensors=content.tensors,
        sidecar=opened.sidecar if opened else None,
        table=table,
        carried=opened.carried if opened else (),
        unknown=opened.unknown if opened else (),
        notes=(*notes, "a GGUF file's tokenizer is not carried over (--tokenizer)"),
    )


def _open_huggingface(path: Path, folder: Path, values: dict[str, Any], asked: _Asked, weights: Weights) -> Source:
    what = str(folder / "config.json")
    family = find_family(values.get("model_type"), asked, what)
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.exists() else None
    mapped: Mapped = from_huggingface(family, values, generation, what)
    return Source(
        path=path,
        layout="huggingface",
        family=family,
        config=mapped.config,
        tensors=weights.tensors,
        sidecar=Sidecar(config=values, generation=generation),
        table=family,
        carried=mapped.carried,
        unknown=mapped.unknown,
        notes=weights.notes,
    )


def _open_ours(path: Path, folder: Path, values: dict[str, Any], weights: Weights) -> Source:
    config = read_config(values, str(folder / "config.json"))
    return Source(
        path=path,
        layout="mindspore",
        family=FAMILIES.get(config["model_type"]),
        config=config,
        tensors=weights.tensors,
        sidecar=read_sidecar(folder),
        notes=weights.notes,
    )


def _open_checkpoint(path: Path, given: Path | Mapping[str, Any] | None) -> Source:
    step, tensors, state, num_left = read_checkpoint(path)
    config, folder = _checkpoint_config(step, state, given)
    return Source(
        path=path,
        layout="checkpoint",
        family=FAMILIES.get(config["model_type"]),
        config=config,
        tensors=tensors,
        sidecar=read_sidecar(folder),
        notes=(f"{num_left} tensors outside model. left alone in {step.name}",) if num_left else (),
    )


def _checkpoint_config(
    step: Path, state: dict[str, Any], given: Path | Mapping[str, Any] | None
) -> tuple[Config, Path]:
    beside = step.parent / "config.json"
    stored = state.get("config")
    if isinstance(given, Mapping):
        return read_config(given, "config"), step.parent
    if given is not None:
        file = given / "config.json" if given.is_dir() else given
        return read_config(read_json(file), str(file)), file.parent
    if beside.exists():
        return read_config(read_json(beside), str(beside)), step.parent
    if isinstance(stored, dict) and isinstance(stored.get("model"), dict):
        return read_config(stored["model"], f"{step / 'state.json'}: values.config.model"), step.parent
    raise SourceError(
        f"{step}: no config; put a config.json of format {FORMAT!r} into {step.parent}, or give one (--config)"
    )
