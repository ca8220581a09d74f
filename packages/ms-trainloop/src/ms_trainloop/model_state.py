"""What of a model is trained, saved and copied in half precision."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_trainloop.config import TrainConfig
from ms_trainloop.errors import TrainLoopError
from ms_trainloop.parameter_groups import matches, require_matches
from ms_trainloop.precision import apply_precision

UNSAVED = ("cache.", "constant.")
"""Names of parameters that are no state of the model (contract `model`): neither trained nor saved."""
_INTEGERS = (mindspore.int32, mindspore.int64, mindspore.uint32, mindspore.uint64)


class ModelState:
    """The parameters of a model under the names they are saved by.

    Attributes:
        model_parameters: The model's own, trained ones only, in the type the model computes with.
        trained: What the optimizer updates: those, or their float32 masters.
        saved: What is saved: every parameter, as its master where it has one.
        copies: The model's half-precision parameters that follow a master.
        counters: Integer parameters that are saved but not trained, such as a dropout's count of calls: the only ones
            that a forward pass may change.
    """

    def __init__(self, model: nn.Cell, config: TrainConfig, parameters: Mapping[str, Parameter] | None) -> None:
        """Freezes and converts the model's parameters as the config says; they stay so.

        Raises:
            ConfigError: A pattern of `frozen` or `groups` matches nothing.
            TrainLoopError: `parameters` is not exactly the model's parameters, or they cannot be trained.
        """
        if parameters is None:
            parameters = {parameter.name: parameter for parameter in model.get_parameters()}
        groups = [group.pattern for group in config.groups]
        require_matches(parameters, {"train.frozen": config.frozen, "train.groups": groups})
        for name, parameter in parameters.items():
            if matches(name, config.frozen):
                parameter.requires_grad = False
        _require_trainable(model, parameters)
        masters = apply_precision(model, parameters, config)
        self.model_parameters = {name: each for name, each in parameters.items() if each.requires_grad}
        self.trained = {name: masters.get(name, each) for name, each in self.model_parameters.items()}
        self.saved = {n: masters.get(n, p) for n, p in parameters.items() if not n.startswith(UNSAVED)}
        self.copies = {name: parameters[name] for name in masters}
        self.counters = {n: p for n, p in self.saved.items() if not p.requires_grad and p.dtype in _INTEGERS}

    def refresh_copies(self) -> None:
        """Gives the half-precision copies the values of their masters, which were written."""
        for name, copy in self.copies.items():
            write(copy, self.saved[name].asnumpy())

    def require_equal_copies(self) -> None:
        """Raises TrainLoopError if the model was loaded with weights after its masters were made."""
        stale = [
            name
            for name, copy in self.copies.items()
            if not np.array_equal(copy.asnumpy(), self.saved[name].asnumpy().astype(copy.asnumpy().dtype), True)
        ]
        if stale:
            raise TrainLoopError(
                f"{', '.join(stale)}: the model's half-precision weights differ from their float32 masters; load"
                " weights before making the TrainStep"
            )

    def read_counters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns copies of the counters' values."""
        return {name: np.array(counter.asnumpy()) for name, counter in self.counters.items()}

    def write_counters(self, values: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Gives the counters values that were read."""
        for name, value in values.items():
            write(self.counters[name], value)

    @contextmanager
    def replaced(self, values: Mapping[str, Parameter]) -> Iterator[None]:
        """Puts other values into the model inside the block, and its own back after it, to the bit."""
        places = {name: self.copies.get(name, self.saved[name]) for name in values}
        kept = {name: np.array(place.asnumpy()) for name, place in places.items()}
        try:
            for name, place in places.items():
                write(place, values[name].asnumpy())
            yield
        finally:
            for name, place in places.items():
                write(place, kept[name])


def write(parameter: Parameter, value: np.ndarray[Any, Any]) -> None:
    """Writes a value in place, cast to the parameter's type.

    `set_data` would give new storage, which a graph with control flow that has run silently ignores.
    """
    tensor = Tensor(np.ascontiguousarray(value).reshape(value.shape))
    if parameter.dtype == mindspore.bfloat16:  # the CPU has no Assign for it, but this copy
        parameter.copy_(tensor.astype(parameter.dtype))
    else:
        ops.assign(parameter, tensor.astype(parameter.dtype))


def _require_trainable(model: nn.Cell, parameters: Mapping[str, Parameter]) -> None:
    """Names must be unique and cover the model; graphs need MindSpore's own names unique too."""
    given = {id(parameter): name for name, parameter in parameters.items()}
    problems = [f"{p.name} of the model is not among them" for p in model.get_parameters() if id(p) not in given]
    present = {id(parameter) for parameter in model.get_parameters()}
    problems += [f"{name} is not a parameter of the model" for key, name in given.items() if key not in present]
    problems += [f"{n} is the same object as {given[id(p)]}" for n, p in parameters.items() if given[id(p)] != n]
    raw: dict[str, str] = {}
    for name, parameter in parameters.items():
        if raw.setdefault(parameter.name, name) != name:
            problems.append(f"{name} and {raw[parameter.name]} both carry MindSpore's name {parameter.name}")
        if parameter.requires_grad and parameter.dtype != mindspore.float32:
            problems.append(f"{name} is {parameter.dtype}, expected Float32")
    if not any(parameter.requires_grad for parameter in parameters.values()):
        problems.append("none of them is trainable (requires_grad, train.frozen)")
    if problems:
        raise TrainLoopError(f"parameters: {'; '.join(problems)}")
