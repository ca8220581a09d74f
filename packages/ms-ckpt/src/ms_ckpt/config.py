"""What a run's YAML says in its section `checkpoint`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_ckpt.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints stay on disk after each save."""

    keep_last: int = 3
    """Number of newest valid checkpoints to keep; 0 keeps all. Three, so that two may be damaged without loss."""

    keep_every: int = 0
    """Checkpoints whose step is a multiple of this are kept for good; 0 keeps none for that reason."""

    keep_every_minutes: int = 0
    """Checkpoints at least this long after the one kept before for that reason stay for good; 0 keeps none."""

    keep_best: int = 0
    """Number of checkpoints with the best `best_metric` to keep besides the newest ones; 0 keeps none."""

    best_metric: str = ""
    """Where the metric stands in the saved values, keys between dots (`metrics.validation_loss`)."""

    best_is: str = "lowest"
    """Which metric is best: `lowest` (a loss) or `highest` (an accuracy)."""

    lock_seconds: int = 60
    """How long a save waits for another process that is saving under the same root; a save takes less than that."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a negative number, an unknown choice, or keep_best without its metric."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type not in (int, "int"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"checkpoint.{field.name}: expected an integer >= 0, found {value!r}")
        if self.best_is not in ("lowest", "highest"):
            raise ConfigError(f"checkpoint.best_is: expected 'lowest' or 'highest', found {self.best_is!r}")
        if self.keep_best and not self.best_metric:
            raise ConfigError(f"checkpoint.keep_best: {self.keep_best}, but checkpoint.best_metric is empty")


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
