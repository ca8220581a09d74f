"""The only module here that touches MindSpore: parameters out to arrays, and back."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ms_ckpt.errors import CkptError, MismatchError
from ms_ckpt.tensor import RawTensor, Tensor, returned_form, spell_dtype, stored_form

if TYPE_CHECKING:
    from mindspore import Parameter


def snapshot(parameters: "Mapping[str, Parameter]") -> dict[str, Tensor]:
    """Copies of the parameters' values; training may go on at once (`asnumpy` alone is a live view on CPU).

    bfloat16 comes as RawTensor of its words.
    """
    return {name: _copy(parameter) for name, parameter in parameters.items()}


def restore(parameters: "Mapping[str, Parameter]", tensors: Mapping[str, Tensor]) -> None:
    """Sets every parameter to the tensor of its name, exactly.

    Raises MismatchError listing every missing, unexpected, reshaped and retyped tensor; nothing is set then.
    """
    differences = []
    for name in sorted(parameters.keys() | tensors.keys()):
        if name not in tensors:
            differences.append(f"{name}: missing")
        elif name not in parameters:
            differences.append(f"{name}: unexpected")
        else:
            found, wanted = _describe(tensors[name]), _describe_parameter(parameters[name])
            if found != wanted:
                differences.append(f"{name}: {found}, expected {wanted}")
    if differences:
        raise MismatchError("\n  ".join([f"{len(differences)} differences from the parameters:", *differences]))
    mindspore = _import_mindspore()
    for name, parameter in parameters.items():
        tensor = tensors[name]
        if isinstance(tensor, RawTensor):
            from mindspore.common.np_dtype import bfloat16  # through float32 some NaNs would change their bits

            value = mindspore.Tensor(tensor.words.view(bfloat16))
        else:
            value = mindspore.Tensor(tensor)
        # In place: after a graph with control flow has run, new storage (set_data) reaches its forward pass only.
        parameter.copy_(value)


def _copy(parameter: "Parameter") -> Tensor:
    dtype, words = stored_form(parameter.name, np.array(parameter.asnumpy()))
    return returned_form(dtype, words)


def _describe(tensor: Tensor) -> str:
    dtype = tensor.dtype if isinstance(tensor, RawTensor) else spell_dtype(tensor.dtype)
    return f"{dtype} {list(tensor.shape)}"


def _describe_parameter(parameter: "Parameter") -> str:
    dtype = spell_dtype(str(parameter.dtype).lower(), parameter.name)  # MindSpore says Float32, BFloat16, Bool
    return f"{dtype} {list(parameter.shape)}"


def _import_mindspore() -> Any:
    try:
        import mindspore
    except ImportError as error:
        raise CkptError(f'{error}; install it by: pip install "ms-ckpt[mindspore]"') from error
    return mindspore
