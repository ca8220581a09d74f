"""Checked configs from parsed text: a dataclass from a mapping."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_gptmodel.errors import ConfigError

T = TypeVar("T")


def from_mapping(cls: type[T], values: Mapping[str, Any], section: str) -> T:
    """Builds the dataclass `cls`; raises ConfigError with the full path of an unknown, missing or mistyped key."""
    kinds, ready = get_type_hints(cls), {}
    for key, value in values.items():
        if key not in kinds:
            near = get_close_matches(key, kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kinds)}"
            raise ConfigError(f"{section}.{key}: unknown key; {hint}")
        ready[key], kind = tuple(value) if isinstance(value, list) else value, kinds[key]
        if isinstance(1.0, kind) and type(value) in (int, str):
            with suppress(ValueError):  # YAML 1.1 reads 3e-4 as text
                ready[key] = float(value)
        if not isinstance(ready[key], kind) or (isinstance(value, bool) and "bool" not in str(kind)):
            raise ConfigError(f"{section}.{key}: expected {getattr(kind, '__name__', kind)}, found {value!r}")
    if missing := [f.name for f in fields(cls) if f.name not in ready and f.default is f.default_factory]:  # type: ignore[arg-type]
        raise ConfigError(f"{section}: missing {', '.join(missing)}")
    return cls(**ready)
