"""config.json as a file: strict JSON, written whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

from ms_gptmodel.errors import ConfigError

FORMAT, VERSION = "ms-gptmodel.config", 1


def read_config(path: Path) -> dict[str, Any]:
    """The keys of the config.json `path`, `format` and `version` among them.

    Raises ConfigError, naming the file, for anything but a JSON object with these two, and for a repeated key.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_refuse_repeats)
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(values).__name__}")
    for key in ("format", "version"):
        if key not in values:
            raise ConfigError(
                f"{path}: no {key!r}; expected {FORMAT!r} version {VERSION} (a config.json of Hugging Face is converted"
                " by ms-weightconv)"
            )
    return values


def write_whole(path: Path, text: str) -> None:
    """Writes `text` beside `path`, then renames it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"repeated key {next(key for key in names if names.count(key) > 1)!r}")
    return values
