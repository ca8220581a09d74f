"""`model.safetensors`: all weights of a bundle, once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ms_export.errors import BundleError, ModelError


def write_weights(path: Path, weights: Mapping[str, Any], precision: str) -> None:
    """Writes Parameters under their contract names.

    Raises:
        ModelError: A floating-point weight is of another dtype than `precision`, or has a value that is not finite.
    """
    # safetensors writes non-contiguous arrays wrongly without an error; the copy also frees us from MindSpore's view.
    arrays = {name: np.array(parameter.asnumpy(), order="C") for name, parameter in weights.items()}
    faults = []
    for name, array in arrays.items():
        floating = np.issubdtype(array.dtype, np.floating)
        if floating and array.dtype.name != precision:
            faults.append(f"{name} is {array.dtype.name}, expected {precision}")
        elif floating and not np.isfinite(array).all():
            faults.append(f"{name} has values that are not finite")
    if faults:
        raise ModelError("model.weights: " + "; ".join(faults))
    save_file(arrays, path)
    path.chmod(0o644)  # safetensors makes it 0600, unlike every other file of a bundle


def read_weights(path: Path) -> dict[str, Any]:
    """Reads all weights as MindSpore Tensors, one at a time, so that one copy of the model is in memory.

    Raises:
        BundleError: The file is no safetensors file.
    """
    from mindspore import Tensor

    try:
        with safe_open(path, framework="numpy") as file:
            return {name: Tensor(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except SafetensorError as error:
        raise BundleError(f"{path}: not a safetensors file ({error})") from error
