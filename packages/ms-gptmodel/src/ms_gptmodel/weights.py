"""A model's parameters under the names of contract `model`, and loading of arrays into them."""

import importlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn

from ms_gptmodel.errors import WeightsError


def named_parameters(model: nn.Cell) -> dict[str, Parameter]:
    """The model's parameters by contract name, in the order of the cells; with dropout, `counter.forward` among them.

    Names follow from where a parameter stands in `model`, not from `Parameter.name`: MindSpore rewrites that one
    whenever a cell is put into another. Pass the LanguageModel itself, not the cell around it.
    """
    named = model.parameters_and_names()
    return {name: value for name, value in named if not name.split(".")[-1].startswith(("cache", "constant"))}


def load_weights(model: nn.Cell, arrays: Mapping[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    """Puts `arrays`, keyed by contract name, into the model's parameters; the parameters keep their types.

    A counter and LoRA's adapters may be missing and are left as they are then.

    Raises WeightsError with every missing, unexpected and wrongly shaped name; then nothing was loaded.
    """
    parameters = named_parameters(model)
    faults = [f"missing {name}" for name in parameters if name not in arrays and not _may_be_missing(name)]
    faults += [f"unexpected {name}" for name in arrays if name not in parameters]
    for name, value in arrays.items():
        if name in parameters and tuple(value.shape) != tuple(parameters[name].shape):
            faults.append(f"{name} has shape {tuple(value.shape)}, expected {tuple(parameters[name].shape)}")
    if faults:
        raise WeightsError(f"{len(faults)} of {len(parameters)} weights do not fit: {'; '.join(faults)}")
    for name, value in arrays.items():
        parameters[name].set_data(Tensor(np.ascontiguousarray(value), dtype=parameters[name].dtype))


def _may_be_missing(name: str) -> bool:
    return name.startswith("counter.") or ".lora_" in name


def read_weights(path: str | Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """All tensors of the safetensors file `path`. Needs the extra `safetensors`."""
    try:
        numpy_reader = importlib.import_module("safetensors.numpy")
        format_error = importlib.import_module("safetensors").SafetensorError
    except ImportError as error:
        raise WeightsError('reading weights needs safetensors: pip install "ms-gptmodel[safetensors]"') from error
    if not Path(path).is_file():
        raise WeightsError(f"{path}: no such file")
    try:
        arrays: dict[str, np.ndarray] = numpy_reader.load_file(path)  # type: ignore[type-arg]
    except format_error as error:
        raise WeightsError(f"{path}: not a whole safetensors file: {error}") from error
    return arrays
