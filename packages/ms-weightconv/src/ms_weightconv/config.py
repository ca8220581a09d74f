"""The configuration of a conversion: section `convert` of a run's YAML."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_weightconv.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ConvertConfig:
    """What a conversion is asked for."""

    dtype: str | None = None
    """fp32, fp16, bf16 or fp64 to cast to; the default keeps every word as it is."""
    max_shard_size: int | str = "5GB"
    """Bytes of a Hugging Face shard, or a text such as 5GB or 500MiB; 5GB is what hubs are used to."""
    family: str | None = None
    """The Hugging Face family to read or write; the default takes the one that the config names."""

    def __post_init__(self) -> None:
        """Raises ConfigError naming the field, what was found and what was expected."""
        from ms_weightconv.families import FAMILIES
        from ms_weightconv.target import parse_size
        from ms_weightconv.words import parse_dtype

        if self.dtype is not None:
            parse_dtype(self.dtype)
        parse_size(self.max_shard_size)
        if self.family is not None and self.family not in FAMILIES:
            raise ConfigError(f"family: found {self.family!r}, expected one of {', '.join(FAMILIES)}")


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
