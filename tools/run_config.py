"""The configuration of a run: one YAML file, one section per package, changed by `--set section.key=value`."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import ms_ckpt.config
import ms_dataprep.config
import ms_export.config
import ms_gptmodel.config
import ms_parallel.config
import ms_trainloop.config
import ms_weightconv.config
import yaml


class RunConfigError(Exception):
    """A run's configuration, its inputs or its outputs cannot be used as they are."""


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """The section `run`: what belongs to no single package."""

    folder: str
    """Where everything of this run is written."""
    train_dataset: str | None = None
    """Dataset folder for training; default: `train` in the run's folder."""
    validation_dataset: str | None = None
    """Dataset folder for evaluation; default: `validation` in the run's folder."""
    tokenizer: str | None = None
    """A tokenizer file to use; default: one is trained into the run's folder."""
    text: str | tuple | None = None  # type: ignore[type-arg]
    """Text to prepare when the datasets are missing: paths, or `system` for the Python installation's own English."""
    text_megabytes: float = 6.0
    """How much text `system` collects; bounds the time of preparation."""
    prompts: tuple = ()  # type: ignore[type-arg]
    """Prompts that are continued during training, so that progress can be read."""
    sample_tokens: int = 32
    """How many ids a sample adds to its prompt."""
    save_in_background: bool = True
    """Whether checkpoints are written beside the training, which goes on as soon as the tensors are copied."""

    def __post_init__(self) -> None:
        if not self.text_megabytes > 0:
            raise RunConfigError(f"run.text_megabytes: expected a number above 0, found {self.text_megabytes}")
        if self.sample_tokens < 1:
            raise RunConfigError(f"run.sample_tokens: expected at least 1, found {self.sample_tokens}")

    @property
    def path(self) -> Path:
        """The run's folder."""
        return Path(self.folder)

    @property
    def train_path(self) -> Path:
        """The folder of the training dataset."""
        return Path(self.train_dataset) if self.train_dataset else self.path / "train"

    @property
    def validation_path(self) -> Path:
        """The folder of the validation dataset."""
        return Path(self.validation_dataset) if self.validation_dataset else self.path / "validation"

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer's file."""
        return Path(self.tokenizer) if self.tokenizer else self.path / "tokenizer.json"

    @property
    def checkpoints_path(self) -> Path:
        """The folder that holds the run's checkpoints."""
        return self.path / "checkpoints"


def _reader(package: Any, name: str) -> Callable[[Mapping[str, Any], str], Any]:
    return lambda values, section: package.from_mapping(getattr(package, name), values, section)


SECTIONS: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "run": lambda values, section: ms_trainloop.config.from_mapping(RunSection, values, section),
    "data": _reader(ms_dataprep.config, "DataConfig"),
    "model": ms_gptmodel.config.ModelConfig.from_mapping,
    "parallel": _reader(ms_parallel.config, "ParallelConfig"),
    "train": _reader(ms_trainloop.config, "TrainConfig"),
    "checkpoint": _reader(ms_ckpt.config, "CheckpointConfig"),
    "export": _reader(ms_export.config, "ExportConfig"),
    "convert": _reader(ms_weightconv.config, "ConvertConfig"),
}
"""Every section with the reader of the package that it belongs to."""


@dataclass(frozen=True)
class RunConfig:
    """A run's sections as plain mappings; each package reads its own."""

    sections: dict[str, dict[str, Any]]

    @property
    def run(self) -> RunSection:
        """The section `run`, checked."""
        run: RunSection = self.read("run")
        return run

    def __getitem__(self, section: str) -> dict[str, Any]:
        return self.sections[section]

    def read(self, section: str, **changes: Any) -> Any:
        """The section as its package's config, with `changes`; raises that package's error at the first wrong key."""
        return SECTIONS[section]({**self.sections[section], **changes}, section)

    def fingerprint(self, *names: str) -> str:
        """A hash of the named sections, to notice that a finished stage was made with other options."""
        chosen = {name: self.sections[name] for name in names}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]

    def save(self, path: Path) -> None:
        """Writes the sections as YAML."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(self.sections, sort_keys=False, allow_unicode=True), encoding="utf-8")


def load_run_config(path: Path, changes: tuple[str, ...] = ()) -> RunConfig:
    """Reads a run's YAML and applies `section.key=value` changes; raises RunConfigError with the place of a mistake."""
    try:
        sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunConfigError(f"{path}: no such config file; the shipped ones are in configs/") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunConfigError(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from error
    if not isinstance(sections, dict):
        raise RunConfigError(f"{path}: expected sections ({', '.join(SECTIONS)}), found {type(sections).__name__}")
    for name, section in sections.items():
        if name not in SECTIONS:
            raise RunConfigError(f"{path}: {name}: unknown section; {_nearest(str(name), SECTIONS)}")
        if not isinstance(section, dict | None):
            raise RunConfigError(f"{path}: {name}: expected keys and values, found {section!r}")
    ready = {name: dict(sections.get(name) or {}) for name in SECTIONS}
    for change in changes:
        place, equals, text = change.partition("=")
        section, dot, key = place.partition(".")
        if not equals or not dot or not key:
            raise RunConfigError(f"--set {change}: expected section.key=value")
        if section not in SECTIONS:
            raise RunConfigError(f"--set {change}: unknown section {section!r}; {_nearest(section, SECTIONS)}")
        try:
            ready[section][key] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise RunConfigError(f"--set {change}: the value is not YAML") from error
    config = RunConfig(ready)
    for section in SECTIONS:  # a mistake in a late stage's section is found now, not after the hours before it
        config.read(section)
    return config


def _nearest(name: str, known: Any) -> str:
    near = get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
