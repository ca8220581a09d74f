"""The steps between foreign tensors and those of contract `model`: each an invertible change of layout.

`forward` leads to contract `model`, `backward` is its inverse. A step that yields several arrays may be asked for one
of them (`only`), so that a fused tensor is not cut into all of its parts for each of them. Views are handed on where
numpy can make them.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ms_weightconv.contract import Config
from ms_weightconv.parameters import Shape, part_width
from ms_weightconv.words import Words

T = TypeVar("T")


class Step(Protocol):
    """One invertible change of layout."""

    def forward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """Foreign arrays to ours, or the one of ours with number `only`."""

    def backward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """Our arrays to foreign ones, or the foreign one with number `only`: the inverse of `forward`."""

    def backward_shapes(self, shapes: list[Shape], config: Config) -> list[Shape]:
        """The shapes that `backward` yields, without touching data."""


@dataclass(frozen=True)
class Transpose:
    """Exchanges the two last axes of each array: for layers that store `[in, out]`."""

    def forward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        return [array.swapaxes(-1, -2) for array in _chosen(arrays, only)]

    backward = forward

    def backward_shapes(self, shapes: list[Shape], config: Config) -> list[Shape]:
        """See `Step`."""
        return [(*shape[:-2], shape[-1], shape[-2]) for shape in shapes]

    def __str__(self) -> str:
        return "transpose"


@dataclass(frozen=True, init=False)
class Split:
    """Cuts one fused tensor along its output axis into the named projections, in the named order."""

    parts: tuple[str, ...]
    """Of query, key, value, gate, up; their widths come from the config."""

    def __init__(self, *parts: str) -> None:
        object.__setattr__(self, "parts", parts)

    def forward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        (fused,) = arrays
        ends = np.cumsum([part_width(config, part) for part in self.parts])
        return _chosen(np.split(fused, ends[:-1]), only)

    def backward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        return [np.concatenate(arrays)]

    def backward_shapes(self, shapes: list[Shape], config: Config) -> list[Shape]:
        """See `Step`."""
        return [(sum(shape[0] for shape in shapes), *shapes[0][1:])]

    def __str__(self) -> str:
        return f"split {'/'.join(self.parts)}"


@dataclass(frozen=True)
class Ungroup:
    """Cuts a fused tensor whose rows stand, per key/value head, as its queries, its key, its value, into the three.

    With as many key/value heads as query heads that is one query, key and value a head (GPT-NeoX, BLOOM); with one
    key/value head it is all queries, the key, the value (Falcon-7B).
    """

    def forward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        queries = config["num_attention_heads"] // config["num_key_value_heads"]
        rest = arrays[0].shape[1:]
        rows = arrays[0].reshape(config["num_key_value_heads"], queries + 2, config["head_dim"], *rest)
        cuts = (slice(queries), slice(queries, queries + 1), slice(queries + 1, queries + 2))
        return [rows[:, cut].reshape(-1, *rest) for cut in _chosen(list(cuts), only)]

    def backward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        rest = arrays[0].shape[1:]
        parts = [part.reshape(config["num_key_value_heads"], -1, config["head_dim"], *rest) for part in arrays]
        return [np.concatenate(parts, axis=1).reshape(-1, *rest)]

    def backward_shapes(self, shapes: list[Shape], config: Config) -> list[Shape]:
        """See `Step`."""
        return [(sum(shape[0] for shape in shapes), *shapes[0][1:])]

    def __str__(self) -> str:
        return "ungroup query/key/value"


@dataclass(frozen=True)
class Stack:
    """One tensor an expert becomes one for all, the expert being its first axis."""

    def forward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        return [np.stack(arrays)]

    def backward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        return _chosen(list(arrays[0]), only)

    def backward_shapes(self, shapes: list[Shape], config: Config) -> list[Shape]:
        """See `Step`."""
        return [shapes[0][1:]] * shapes[0][0]

    def __str__(self) -> str:
        return "stack experts"


@dataclass(frozen=True)
class RotaryPairs:
    """Rows of each head with the two numbers of a rotary pair side by side (Meta's order); ours are half a head apart.

    Holds for queries and keys whose whole head is rotated.
    """

    def forward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        return [self._exchange(array, (config["head_dim"] // 2, 2)) for array in _chosen(arrays, only)]

    def backward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        return [self._exchange(array, (2, config["head_dim"] // 2)) for array in _chosen(arrays, only)]

    def backward_shapes(self, shapes: list[Shape], config: Config) -> list[Shape]:
        """See `Step`."""
        return shapes

    def __str__(self) -> str:
        return "rotary pairs from side by side to half a head apart"

    def _exchange(self, array: Words, head: tuple[int, int]) -> Words:
        return array.reshape(-1, *head, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


@dataclass(frozen=True)
class Halves:
    """Cuts one fused tensor along its output axis into two: one behind the other, or row by row in turn."""

    is_interleaved: bool = False
    """Rows 0, 2, 4 ... are of the first, rows 1, 3, 5 ... of the second."""

    def forward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        (fused,) = arrays
        half = fused.shape[0] // 2
        parts = [fused[0::2], fused[1::2]] if self.is_interleaved else [fused[:half], fused[half:]]
        return _chosen(parts, only)

    def backward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        if not self.is_interleaved:
            return [np.concatenate(arrays)]
        return [np.stack(arrays, axis=1).reshape(-1, *arrays[0].shape[1:])]

    def backward_shapes(self, shapes: list[Shape], config: Config) -> list[Shape]:
        """See `Step`."""
        return [(sum(shape[0] for shape in shapes), *shapes[0][1:])]

    def __str__(self) -> str:
        return "rows in turn" if self.is_interleaved else "halves"


@dataclass(frozen=True)
class GroupedExperts:
    """All experts' weights in one matrix for a grouped product, each `[in, out]`, the parts beside each other.

    The matrix is said to be `[in, experts * out]` before the activation and `[experts * in, out]` behind it; in both
    cases its memory is that of `[experts, in, out]`, as which MindFormers reads it.
    """

    is_before_activation: bool
    """Gate and up, or down."""

    def forward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        (fused,) = arrays
        inner = config["moe_intermediate_size"]
        if not self.is_before_activation:
            return [fused.reshape(config["num_experts"], inner, -1).swapaxes(1, 2)]
        stacked = fused.reshape(config["num_experts"], config["hidden_size"], -1).swapaxes(1, 2)
        return _chosen([stacked[:, at : at + inner] for at in range(0, stacked.shape[1], inner)], only)

    def backward(self, arrays: list[Words], config: Config, only: int | None = None) -> list[Words]:
        """See `Step`."""
        joined = np.concatenate(arrays, axis=1).swapaxes(1, 2)
        (shape,) = self.backward_shapes([array.shape for array in arrays], config)
        return [np.ascontiguousarray(joined).reshape(shape)]

    def backward_shapes(self, shapes: list[Shape], config: Config) -> list[Shape]:
        """See `Step`."""
        experts, out, width = shapes[0]
        return [(width, experts * out * len(shapes)) if self.is_before_activation else (experts * width, out)]

    def __str__(self) -> str:
        return "grouped experts"


def _chosen(values: list[T], only: int | None) -> list[T]:
    return values if only is None else [values[only]]
