"""What a run's YAML says about export, in its section `export`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_export.errors import ConfigError

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


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """Which graphs a bundle holds, how exact they must be, and how it generates unless told otherwise."""

    prefill_lengths: tuple = (32, 128)  # type: ignore[type-arg]  # the reader checks with isinstance
    """Lengths of the prefill graphs, in ids; a prompt runs in the shortest one that holds it, the longest is the
    longest prompt. Each costs a graph to compile, each missing one costs work on padding."""
    prefill_batch: int = 1
    """Prompts per call of a prefill graph. 1 wastes nothing on prompts of unequal length."""
    decode_batches: tuple = (1, 4)  # type: ignore[type-arg]
    """Lanes of the decode graphs; n prompts under way run in the smallest one that holds them, or in several calls."""
    decode_windows: tuple = ()  # type: ignore[type-arg]
    """Cache rows that decode graphs look at, beside `max_length`, which is always there. A short window is faster as
    long as all lanes stand inside it. () means the one window `max_length`."""
    max_length: int = 256
    """Ids that a lane can hold, prompt and new ones together."""
    slots: int = 5
    """Lanes that the cache has room for. The last one is scratch, so at least the largest decode batch plus 1."""
    precision: str = "float32"
    """Kind of number of weights, cache and logits. "float32" is the only choice of this version."""
    tolerance: float = 1e-5
    """Largest difference from the source model's logits, as a share of the largest logit. Rounding in fp32 is
    below 2e-6 on the models we measured; a wrong weight or mask is far above 1e-4."""
    max_new_tokens: int = 128
    """New ids per prompt unless a call says otherwise."""
    temperature: float = 0.0
    """Divides the logits before sampling; 0 takes the largest one (greedy)."""
    top_k: int = 0
    """Samples among the k largest logits; 0 means all."""
    top_p: float = 1.0
    """Samples among the fewest ids whose probabilities reach this sum; 1 means all."""
    eos_token_ids: tuple = ()  # type: ignore[type-arg]
    """Ids that end a text. () takes `eos_token_id` of the model's config, which may be one id or a list."""

    def __post_init__(self) -> None:
        """Refuses impossible values by name."""
        for name in ("prefill_lengths", "decode_batches", "decode_windows", "eos_token_ids"):
            values, low = getattr(self, name), 0 if name == "eos_token_ids" else 1
            if not all(isinstance(v, int) and not isinstance(v, bool) and v >= low for v in values):
                raise ConfigError(f"export.{name}: expected whole numbers from {low}, found {list(values)}")
            if len(set(values)) != len(values):
                raise ConfigError(f"export.{name}: expected different values, found {list(values)}")
        for name in ("prefill_lengths", "decode_batches"):
            if not getattr(self, name):
                raise ConfigError(f"export.{name}: expected at least one value, found none")
        for name, low in (("prefill_batch", 1), ("max_length", 2), ("max_new_tokens", 1)):
            if getattr(self, name) < low:
                raise ConfigError(f"export.{name}: expected at least {low}, found {getattr(self, name)}")
        if 1 in self.decode_windows:
            raise ConfigError("export.decode_windows: expected at least 2, found 1; decoding starts at position 1")
        for name in ("prefill_lengths", "decode_windows"):
            if any(v > self.max_length for v in getattr(self, name)):
                raise ConfigError(
                    f"export.{name}: expected values up to export.max_length ({self.max_length}), "
                    f"found {list(getattr(self, name))}"
                )
        lanes = max(*self.decode_batches, self.prefill_batch)
        if self.slots < lanes + 1:
            raise ConfigError(
                f"export.slots: expected at least {lanes + 1} ({lanes} lanes and scratch), found {self.slots}"
            )
        if self.precision != "float32":
            raise ConfigError(f"export.precision: expected float32, found {self.precision!r}")
        if not 0 < self.tolerance < 1:
            raise ConfigError(f"export.tolerance: expected a number between 0 and 1, found {self.tolerance}")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"export.temperature: expected 0 or more, found {self.temperature}")
        if self.top_k < 0:
            raise ConfigError(f"export.top_k: expected 0 (all) or more, found {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"export.top_p: expected more than 0 and at most 1, found {self.top_p}")

    @property
    def windows(self) -> tuple[int, ...]:
        """All windows, rising; the last one is `max_length`."""
        return tuple(sorted({*self.decode_windows, self.max_length}))
