"""MindSpore parameters out to arrays, and back; only this module and `callback.py` touch MindSpore."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ms_ckpt.checkpoint import Checkpoint
from ms_ckpt.errors import CkptError, MismatchError
from ms_ckpt.rules import LoadRules
from ms_ckpt.store import CheckpointStore
from ms_ckpt.tensor import RawTensor, Tensor, returned_form, spell_dtype, stored_form, words_of

if TYPE_CHECKING:
    from mindspore import Parameter


def snapshot(parameters: "Mapping[str, Parameter]") -> dict[str, Tensor]:
    """Copies of the parameters' values; training may go on at once (`asnumpy` alone is a live view on CPU).

    bfloat16 comes as RawTensor of its words.
    """
    return {name: _copy(parameter) for name, parameter in parameters.items()}


def live_views(parameters: "Mapping[str, Parameter]") -> dict[str, Tensor]:
    """The parameters' values without a copy of their own, for `AsyncSaver.save`, which copies them anyway.

    On CPU they are the parameters' memory and change with the next step; elsewhere MindSpore makes a host copy.
    """
    return {name: _view(parameter) for name, parameter in parameters.items()}


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
    for name, parameter in parameters.items():
        _set(parameter, tensors[name])


def load_into_parameters(
    store: CheckpointStore,
    parameters: "Mapping[str, Parameter]",
    step: int | None = None,
    *,
    rules: LoadRules | None = None,
) -> Checkpoint | None:
    """Loads a step, or the newest valid one, into the parameters; returns its step and values (no tensors).

    On CPU straight into the parameters' memory, so no second copy is held; elsewhere one tensor at a time. Nothing is
    set before everything is compared and verified. None if there is no checkpoint at all; errors as those of
    `CheckpointStore.load`.
    """
    mindspore = _import_mindspore()
    if mindspore.get_context("device_target") == "CPU":
        views = live_views(parameters)
        if all(words_of(name, view)[1].flags.writeable for name, view in views.items()):
            return store.load_into(views, step, rules=rules)
    expected = {name: (_dtype_of(parameter), tuple(parameter.shape)) for name, parameter in parameters.items()}
    return store.load_each(expected, lambda name, tensor: _set(parameters[name], tensor), step, rules=rules)


def smallest_of_ranks(number: int) -> int:
    """The smallest of the numbers that all ranks call it with: `agree` of `RankStore.load`, `PartStore.load_agreed`.

    Call `mindspore.communication.init()` first. Steps up to 2**31 - 1.
    """
    mindspore = _import_mindspore()
    gathered = mindspore.ops.AllGather()(mindspore.Tensor(np.array([number], np.int32)))  # CPU has no reduction of ints
    return int(gathered.asnumpy().min())


def _set(parameter: "Parameter", tensor: Tensor) -> None:
    mindspore = _import_mindspore()
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


def _view(parameter: "Parameter") -> Tensor:
    return returned_form(*words_of(parameter.name, parameter.asnumpy()))


def _describe(tensor: Tensor) -> str:
    dtype = tensor.dtype if isinstance(tensor, RawTensor) else spell_dtype(tensor.dtype)
    return f"{dtype} {list(tensor.shape)}"


def _describe_parameter(parameter: "Parameter") -> str:
    return f"{_dtype_of(parameter)} {list(parameter.shape)}"


def _dtype_of(parameter: "Parameter") -> str:
    return spell_dtype(str(parameter.dtype).lower(), parameter.name)  # MindSpore says Float32, BFloat16, Bool


def _import_mindspore() -> Any:
    try:
        import mindspore
    except ImportError as error:
        raise CkptError(f'{error}; install it by: pip install "ms-ckpt[mindspore]"') from error
    return mindspore
