"""What differs between two checkpoints."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_ckpt.folder import CheckpointFolder
from ms_ckpt.tensor import Array, RawTensor, Tensor, returned_form

_STRIP = 1 << 20  # elements compared at a time


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One tensor or value that differs."""

    name: str
    """The tensor's name, or `values.` and the path to the value."""
    text: str
    """What differs, in words."""
    max_difference: float | None = None
    """The largest absolute difference of two numeric tensors of one shape; nan where only one holds a nan."""


def compare(first: CheckpointFolder, second: CheckpointFolder) -> list[Difference]:
    """All differences of tensors, then of values, in order of names (layers by number); empty if bitwise equal."""
    names = sorted(first.index.tensors.keys() | second.index.tensors.keys(), key=_layer_order)
    found = [difference for name in names if (difference := _compare_tensor(name, first, second))]
    return found + _compare_values("values", first.values, second.values)


def _compare_tensor(name: str, first: CheckpointFolder, second: CheckpointFolder) -> Difference | None:
    if name not in first.index.tensors or name not in second.index.tensors:
        where = "second" if name not in first.index.tensors else "first"
        return Difference(name=name, text=f"only in the {where}")
    one, other = first.index.tensors[name], second.index.tensors[name]
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        text = f"{one.dtype} {list(one.shape)} against {other.dtype} {list(other.shape)}"
        return Difference(name=name, text=text)
    a, b = _words(first.read(name)), _words(second.read(name))
    num_different, largest = 0, 0.0
    for start in range(0, a.size, _STRIP):
        one_part, other_part = a[start : start + _STRIP], b[start : start + _STRIP]
        is_different = _bits(one_part) != _bits(other_part)
        if is_different.any():
            num_different += int(np.count_nonzero(is_different))
            gap = _largest_difference(returned_form(one.dtype, one_part), returned_form(one.dtype, other_part))
            largest = max(largest, gap) if gap == gap else gap  # a nan stays
    if num_different == 0:
        return None
    text = f"{num_different} of {a.size} elements differ, by at most {largest:.6g}"
    return Difference(name=name, text=text, max_difference=largest)


def _largest_difference(a: Tensor, b: Tensor) -> float:
    one = a.to_float32() if isinstance(a, RawTensor) else a
    other = b.to_float32() if isinstance(b, RawTensor) else b
    if one.dtype == bool:
        return 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        gaps = np.abs(one.astype(np.float64) - other.astype(np.float64))
    same = (one == other) | ((one != one) & (other != other))  # equal infinities and nan on both sides
    return float(np.where(same, 0.0, gaps).max())


def _compare_values(path: str, a: Any, b: Any) -> list[Difference]:
    if type(a) is dict and type(b) is dict:
        found = []
        for key in sorted(a.keys() | b.keys()):
            if key not in a or key not in b:
                found.append(Difference(name=f"{path}.{key}", text=f"only in the {'second' if key in b else 'first'}"))
            else:
                found += _compare_values(f"{path}.{key}", a[key], b[key])
        return found
    if type(a) is type(b) and repr(a) == repr(b):  # repr tells 0.0 from -0.0, and True from 1 inside lists
        return []
    return [Difference(name=path, text=f"{a!r} against {b!r}")]


def _words(tensor: Tensor) -> Array:
    return (tensor.words if isinstance(tensor, RawTensor) else tensor).reshape(-1)


def _bits(words: Array) -> Array:
    return words.view(f"u{words.itemsize}")


def _layer_order(name: str) -> list[tuple[int, int, str]]:
    """Numbers between dots sort as numbers: blocks.2 before blocks.10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split(".")]
