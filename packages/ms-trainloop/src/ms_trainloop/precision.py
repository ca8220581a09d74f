"""Mixed precision: which parameters and cells compute in half precision, and where the float32 masters are.

| level | weights | computed in the half type | activations between cells |
|---|---|---|---|
| O1 | float32 | cells that own a matrix, their inputs and weights cast on the way in; not those kept | float32 where they meet a float32 one |
| O2 | half copies in the model, float32 masters here | whatever follows the type of its parameters | half |
| O3 | half, no masters: the update is computed in float32 and rounded | the same | half |

`keep_float32` names parameters that stay float32 in every level; O1 also keeps embeddings, which are looked up, not
multiplied. MindSpore's own norms and softmax cells compute in float32 in every level: in O2 and O3 they are wrapped.
Cells of the model must follow their parameters' type and do the same for softmax, norms and rotary angles, as those of
ms-gptmodel do. The loss is float32 always.
"""  # noqa: E501 - a table

from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_trainloop.config import TrainConfig
from ms_trainloop.errors import ConfigError
from ms_trainloop.parameter_groups import matches

HALVES = {"float16": mindspore.float16, "bfloat16": mindspore.bfloat16}
_LOOKED_UP = ("*embedding*",)
_FLOAT32_CELLS = (
    nn.LayerNorm,
    nn.GroupNorm,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.Softmax,
    nn.LogSoftmax,
)


def require_possible(config: TrainConfig) -> None:
    """Raises ConfigError for a precision that this device has no operators for."""
    target = mindspore.get_context("device_target")
    if config.precision == "bfloat16" and target == "CPU":
        raise ConfigError(
            "train.precision: bfloat16 has no MatMul, Softmax or Gather on CPU in this version; use float32 or float16"
        )


def apply_precision(model: nn.Cell, parameters: Mapping[str, Parameter], config: TrainConfig) -> dict[str, Parameter]:
    """Makes the model compute as the config says and returns the float32 masters by name (O2 only).

    Raises:
        ConfigError: O1 finds no cell to convert.
    """
    half = HALVES.get(config.precision)
    if half is None:
        return {}
    if config.precision_level == "O1":
        _cast_matrix_cells(model, parameters, config, half)
        return {}
    masters: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        if parameter.dtype == mindspore.float32 and not matches(name, config.keep_float32):
            if config.precision_level == "O2":
                value = Tensor(np.array(parameter.asnumpy()))
                masters[name] = Parameter(value, name=f"master.{name}", requires_grad=False)
            parameter.set_dtype(half)
    _wrap_float32_cells(model)
    return masters


def _cast_matrix_cells(model: nn.Cell, parameters: Mapping[str, Parameter], config: TrainConfig, half: Any) -> None:
    kept = (*config.keep_float32, *_LOOKED_UP)
    names = {id(parameter): name for name, parameter in parameters.items()}
    count = 0
    for _, cell in model.cells_and_names():
        own = [p for p in cell.get_parameters(expand=False) if id(p) in names]
        is_matrix = any(len(p.shape) >= 2 and not matches(names[id(p)], kept) for p in own)
        if is_matrix and cell is not model:
            cell.to_float(half)
            count += 1
        elif own and all(matches(names[id(p)], kept) for p in own):
            cell.to_float(mindspore.float32)
    if not count:
        raise ConfigError(
            "train.precision_level: O1 found no cell below the model that owns a matrix outside train.keep_float32;"
            " use O2, or put the matrices into cells of their own"
        )


def _wrap_float32_cells(cell: nn.Cell) -> None:
    for name, child in cell.name_cells().items():
        if isinstance(child, _FLOAT32_CELLS):
            cell._cells[name] = _InFloat32(child.to_float(mindspore.float32))
            if isinstance(cell, nn.SequentialCell):
                cell.cell_list = list(cell._cells.values())
        elif not isinstance(child, _InFloat32):
            _wrap_float32_cells(child)


class _InFloat32(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Computes a cell of one argument in float32 and gives its result in the argument's type."""

    def __init__(self, inner: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.inner = inner

    def construct(self, x: Any) -> Any:
        return ops.cast(self.inner(ops.cast(x, mindspore.float32)), x.dtype)
