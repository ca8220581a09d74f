"""What a run's YAML says in its section `parallel`."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_parallel.errors import ConfigError

T = TypeVar("T")
ENGINES = ("spmd", "auto")
RECOMPUTE = ("none", "block")


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How a run lies on its devices: the size of each axis of the mesh, and how the work is cut."""

    data: int = 0
    """Replicas that each see another part of the global batch; 0 takes all ranks that the other axes leave."""

    tensor: int = 1
    """Ranks that share each projection, by rows or columns."""

    pipeline: int = 1
    """Stages that share the blocks."""

    context: int = 1
    """Ranks that share one sequence."""

    expert: int = 1
    """Ranks that share the experts of a mixture."""

    engine: str = "spmd"
    """`spmd`: projections are replaced by sharded ones. `auto`: MindSpore's own parallelism; graph mode, Ascend."""

    optimizer_sharding: bool = False
    """Whether each data-parallel replica keeps only its part of the optimizer's state."""

    micro_batches: int = 1
    """Number of parts in which a rank takes its share of the global batch through the pipeline."""

    recompute: str = "none"
    """`block`: activations inside a block are computed again in the backward pass instead of kept."""

    def __post_init__(self) -> None:
        """Raises ConfigError, naming the field, for an impossible value."""
        for name in ("data", "tensor", "pipeline", "context", "expert", "micro_batches"):
            value, least = getattr(self, name), 0 if name == "data" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"parallel.{name}: expected an integer >= {least}, found {value!r}")
        for name, choices in {"engine": ENGINES, "recompute": RECOMPUTE}.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"parallel.{name}: expected {' or '.join(choices)}, found {getattr(self, name)!r}")


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
