"""A loaded checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_ckpt.tensor import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """What was saved: the step, the tensors by name, and the exact values."""

    step: int
    tensors: dict[str, Tensor]
    """numpy arrays; RawTensor where numpy lacks the type (BF16, F8_E4M3, F8_E5M2)."""
    values: dict[str, Any]
    path: Path
    """The folder it came from."""
