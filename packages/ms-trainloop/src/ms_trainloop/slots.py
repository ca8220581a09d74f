"""Optimizer states: tensors beside a parameter, and how a value is written into one in place."""

from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, ops

STATE_TYPES = {"float32": mindspore.float32, "bfloat16": mindspore.bfloat16}


def make_slot(slot: str, parameters: Mapping[str, Parameter], kind: str) -> dict[str, Parameter]:
    """Returns one zero tensor of type `kind` for each parameter, named `optimizer.SLOT.NAME`."""
    return {
        name: Parameter(
            Tensor(np.zeros(parameter.shape, np.float32), STATE_TYPES[kind]),
            name=f"optimizer.{slot}.{name}",
            requires_grad=False,
        )
        for name, parameter in parameters.items()
    }


def store(parameter: Any, value: Any) -> Any:
    """Writes a float32 value into a parameter in place, rounded to nearest if its type is a half one."""
    if parameter.dtype == mindspore.bfloat16:  # the CPU has no Assign for it, but this copy
        return parameter.copy_(ops.cast(value, mindspore.bfloat16))
    return ops.assign(parameter, ops.cast(value, parameter.dtype))


def pick(values: Any, place: Any) -> Any:
    """Returns one of the values; for mapping over constant places."""
    return values[place]
