"""What `build` takes: two Cells that follow the cached call, and the parameters that they reach."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ms_export.errors import ModelError

PREFILL_INPUTS = ("input_ids", "lengths", "slots")
DECODE_INPUTS = ("input_ids", "positions", "slots")


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """A model ready for export: the cached call of contract `model`, and nothing of the model's code.

    ms_export asks nothing else of a model, so any pair of Cells with these signatures can become a bundle.
    """

    prefill: Any
    """Cell: (input_ids [batch, length], lengths [batch], slots [batch]) -> logits [batch, vocab], for any length."""
    decode: Callable[[int], Any]
    """From a window to the Cell: (input_ids [batch, 1], positions [batch], slots [batch]) -> logits [batch, vocab]."""
    weights: Mapping[str, Any]
    """Name of contract `model` -> the Parameter object that the cells use, `constant.*` included."""
    cache: Mapping[str, Any]
    """`cache.N.key`, `cache.N.value` -> Parameter [slots * num_key_value_heads * max_length, head_dim]."""
    slots: int
    """Lanes of the cache, scratch included."""
    max_length: int
    """Positions of a lane."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The model's config.json: kept for people; `eos_token_id` and its like become the bundle's defaults."""
    vocab_size: int | None = None
    """Ids that may be sampled, for a model whose logits are wider than its vocabulary. None takes the config's
    `vocab_size`, or else the width of the logits."""

    def __post_init__(self) -> None:
        """Refuses parameters that are not laid out as the contract says."""
        if not self.weights:
            raise ModelError("model.weights: found none")
        layers = self.num_layers
        wanted = [f"cache.{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
        if not layers or sorted(self.cache) != sorted(wanted):
            raise ModelError(
                f"model.cache: expected cache.N.key and cache.N.value for N from 0, found {sorted(self.cache)}"
            )
        if self.slots < 2 or self.max_length < 1:
            raise ModelError(
                f"model: expected 2 slots or more and a positive max_length, found {self.slots}, {self.max_length}"
            )
        shapes = {name: tuple(p.shape) for name, p in self.cache.items()}
        first = shapes["cache.0.key"]
        if len(first) != 2 or first[0] % (self.slots * self.max_length) or first[0] == 0:
            raise ModelError(
                f"cache.0.key: expected shape [slots {self.slots} * heads * max_length {self.max_length}, head_dim], "
                f"found {list(first)}"
            )
        if odd := {name: shape for name, shape in shapes.items() if shape != first}:
            raise ModelError(f"model.cache: expected shape {first} of every layer as of cache.0.key, found {odd}")

    @property
    def num_layers(self) -> int:
        """Layers that keep keys and values."""
        return len({name for name in self.cache if re.fullmatch(r"cache\.\d+\.key", name)})

    @property
    def num_key_value_heads(self) -> int:
        """Heads of keys and values in a layer."""
        return int(self.cache["cache.0.key"].shape[0]) // (self.slots * self.max_length)

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return int(self.cache["cache.0.key"].shape[1])

    def require_cells(self, prefill: Any, decode_cells: Mapping[int, Any]) -> None:
        """Compares Cells with the cached call and with the parameters, before anything is compiled.

        Raises:
            ModelError: A Cell has other inputs, reaches a parameter that is neither in `weights` nor in `cache`, or
                none of them reaches one that is.
        """
        named = {id(parameter): name for name, parameter in {**self.weights, **self.cache}.items()}
        reached = set()
        for cell, names in [(prefill, PREFILL_INPUTS), *((cell, DECODE_INPUTS) for cell in decode_cells.values())]:
            kind = type(cell).__name__
            if (found := tuple(inspect.signature(cell.construct).parameters)) != names:
                raise ModelError(f"{kind}: expected inputs {list(names)}, found {list(found)}")
            parameters = list(cell.get_parameters())
            reached |= {id(parameter) for parameter in parameters}
            if strange := [p.name for p in parameters if id(p) not in named]:
                raise ModelError(f"{kind}: reaches parameters that are neither in weights nor in cache: {strange}")
        if unused := [name for number, name in named.items() if number not in reached]:
            raise ModelError(f"model: no cell reaches {unused}; they are wired wrongly, or do not belong here")
