"""A loaded checkpoint, and its comparison with what a caller expects it to hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import DTypeLike

from ms_ckpt.errors import MismatchError
from ms_ckpt.index import Index
from ms_ckpt.tensor import Tensor, spell_dtype


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """What was saved: the step, the tensors by name, and the exact values."""

    step: int
    tensors: dict[str, Tensor]
    """numpy arrays; RawTensor where numpy lacks the type (BF16, F8_E4M3, F8_E5M2)."""
    values: dict[str, Any]
    path: Path
    """The folder it came from."""


def check_expected(index: Index, expected: Mapping[str, tuple[DTypeLike | str, Sequence[int]]], source: str) -> None:
    """Raises MismatchError that lists every missing, unexpected, reshaped and retyped tensor."""
    differences = []
    for name in sorted(expected.keys() | index.tensors.keys()):
        if name not in index.tensors:
            differences.append(f"{name}: missing")
        elif name not in expected:
            differences.append(f"{name}: unexpected")
        else:
            dtype, shape = expected[name]
            tensor, wanted = index.tensors[name], spell_dtype(dtype, name)
            if tensor.shape != tuple(shape):
                differences.append(f"{name}: shape {list(tensor.shape)}, expected {list(shape)}")
            if tensor.dtype != wanted:
                differences.append(f"{name}: dtype {tensor.dtype}, expected {wanted}")
    if differences:
        raise MismatchError(
            "\n  ".join([f"{source}: {len(differences)} differences from what is expected:", *differences])
        )
