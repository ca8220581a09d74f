"""MindIR graphs without weights: exported from Cells, and loaded so that all of them share one set of tensors.

Each `.mindir` that `mindspore.export` writes carries all weights. A bundle has a graph per shape, so the graphs
are taken from the hook `custom_func` before the values are put in, and get their values by name when loaded.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore
from mindspore import Tensor, nn

from ms_export.errors import BundleError, ModelError

# MindSpore's compiler raises what the Python code that it reads would have raised.
_COMPILE_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, NameError, AttributeError, SyntaxError)


@dataclass(frozen=True, kw_only=True)
class ExportedGraph:
    """A graph as bytes, and the parameters that it uses."""

    data: bytes
    """The MindIR file's content, without values of parameters."""
    parameters: frozenset[str]
    """Names of weights and caches that it uses."""


def export_graph(cell: Any, inputs: Sequence[Any], parameters: Mapping[str, Any]) -> ExportedGraph:
    """Compiles a Cell for the shapes of `inputs`, in evaluation mode, and returns its graph without weights.

    Args:
        cell: The Cell; its training flags are afterwards as they were.
        inputs: Tensors of the shapes and dtypes of the call.
        parameters: Contract name -> Parameter, for every parameter that the Cell reaches. They carry these names in
            the graph whatever wrapping made of them.

    Raises:
        ModelError: MindSpore cannot export it.
    """
    taken: list[ExportedGraph] = []

    def take(model: Any) -> None:
        names = [p.name.partition(":")[2] for p in model.graph.parameter]
        taken.append(ExportedGraph(data=model.SerializeToString(), parameters=frozenset(names)))
        model.graph.ClearField("parameter")  # or MindSpore writes all weights to the file that nobody reads

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ms-export-"))
        stack.enter_context(evaluation_mode(cell))
        stack.enter_context(_named(parameters))
        try:
            mindspore.export(
                cell, *inputs, file_name=str(Path(folder) / "graph"), file_format="MINDIR", custom_func=take
            )
        except _COMPILE_ERRORS as error:
            raise ModelError(f"{type(cell).__name__}: MindSpore cannot export it: {_first_line(error)}") from error
    return taken[0]


@contextmanager
def evaluation_mode(*cells: Any) -> Iterator[None]:
    """Dropout and the like are off inside; every cell's training flag is afterwards as it was."""
    flags = [(inner, inner.training) for cell in cells for _, inner in cell.cells_and_names()]
    for cell in cells:
        cell.set_train(False)
    try:
        yield
    finally:
        for inner, was_training in flags:  # outer cells come first, so inner ones have the last word
            inner.set_train(was_training)


def load_graphs(paths: Mapping[str, Path], tensors: Mapping[str, Any], cache: Mapping[str, Any]) -> dict[str, Any]:
    """Loads graphs that share one copy of all weights and one cache.

    Args:
        paths: File name -> path.
        tensors: Name -> Tensor of every weight.
        cache: Name -> Tensor of every cache parameter.

    Returns:
        File name -> GraphCell.

    Raises:
        BundleError: A graph cannot be loaded, or names, shapes or dtypes do not fit; all misfits at once.
    """
    values, cells, faults, used = {**tensors, **cache}, {}, [], set()
    for name, path in paths.items():
        cell = _load(path)
        for parameter in cell.get_parameters():
            value = values.get(parameter.name)
            if value is None:
                faults.append(f"{name} needs {parameter.name}, which the bundle has not")
            elif (parameter.shape, parameter.dtype) != (value.shape, value.dtype):
                faults.append(
                    f"{name} needs {parameter.name} as {parameter.dtype} {parameter.shape}, "
                    f"found {value.dtype} {value.shape}"
                )
            else:
                parameter.set_data(value)  # takes over the tensor's memory; nothing is copied
                used.add(parameter.name)
        cells[name] = cell
    faults += [f"{name} is used by no graph" for name in values if name not in used]
    if faults:
        raise BundleError("graphs and weights do not fit: " + "; ".join(faults))
    _require_shared_cache(cells, cache)
    return cells


def _load(path: Path) -> Any:
    try:
        return nn.GraphCell(mindspore.load(str(path)))
    except (RuntimeError, TypeError, ValueError) as error:
        raise BundleError(
            f"{path.name}: MindSpore {mindspore.__version__} cannot load it ({_first_line(error)}); "
            "bundle.json names the version that exported it"
        ) from error


def _require_shared_cache(cells: Mapping[str, Any], cache: Mapping[str, Any]) -> None:
    """A decode graph must see what a prefill graph wrote. MindSpore does not promise that set_data shares memory."""
    for name, cell in cells.items():
        for parameter in cell.get_parameters():
            if parameter.name in cache and parameter.data_ptr() != cache[parameter.name].data_ptr():
                raise BundleError(
                    f"{name}: MindSpore {mindspore.__version__} copies {parameter.name} instead of sharing it, so "
                    "prefill and decode would not see one cache; use MindSpore 2.10"
                )


@contextmanager
def _named(parameters: Mapping[str, Any]) -> Iterator[None]:
    """The parameters carry the mapping's names inside, and their own afterwards."""
    old = {name: parameter.name for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.name = name
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.name = old[name]


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip(" -")), type(error).__name__)


def int32(values: Any) -> Any:
    """An int32 Tensor of a list or array."""
    return Tensor(values, mindspore.int32)
