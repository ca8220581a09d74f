"""Where numbers stop being finite: the first cell and source line forward, the first cell backward, gradient norms.

Runs in PyNative mode, operator by operator, on one micro-batch; the mode is set back after it.
"""

import linecache
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from ms_trainloop.loss import SummedCrossEntropy
from ms_trainloop.model_state import ModelState

NO_AUXILIARY = -1e30
"""Stands for an auxiliary loss where there is none: finite, and below any, also after sums and a division by labels."""

_FLOATS = (mindspore.float16, mindspore.float32, mindspore.float64, mindspore.bfloat16)


class SeededLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Gives (objective * seed, loss sum, labels, auxiliary sum): the first is what is differentiated.

    If the model returns (logits, auxiliary loss), such as a mixture of experts, the objective is loss sum + auxiliary
    sum, which is the auxiliary loss times this micro-batch's labels: micro-batches and ranks weigh as their tokens do
    (contract `model`). If it returns logits, the objective is the loss sum, and the auxiliary sum NO_AUXILIARY.
    """

    def __init__(self, model: nn.Cell) -> None:
        """Keeps the model."""
        super().__init__(auto_prefix=False)
        self.model = model
        self.loss = SummedCrossEntropy()
        self.no_auxiliary = Tensor(np.float32(NO_AUXILIARY))

    def construct(self, input_ids: Any, labels: Any, position_ids: Any, segment_ids: Any, seed: Any) -> Any:
        """Runs one micro-batch of [batch, seq] int32 tensors."""
        outputs = self.model(input_ids, position_ids, segment_ids)
        if isinstance(outputs, tuple):
            loss_sum, count = self.loss(outputs[0], labels)
            auxiliary_sum = outputs[1] * count
            return (loss_sum + auxiliary_sum) * seed, loss_sum, count, auxiliary_sum
        loss_sum, count = self.loss(outputs, labels)
        return loss_sum * seed, loss_sum, count, self.no_auxiliary


def diagnose(
    model: nn.Cell, state: ModelState, batch: Mapping[str, np.ndarray[Any, Any]], *, seed: float
) -> dict[str, Any]:
    """Returns what is not finite in one micro-batch, as JSON values.

    Args:
        model: The model, as trained.
        state: Its parameters; the counters go on by one forward pass, as in the step.
        batch: One micro-batch of contract `batch`, int32 [batch, seq].
        seed: What the backward pass starts from: loss scale / (rows * tokens of a row of the whole step).

    Returns:
        `weights` (names that hold a value that is not finite), `loss_sum` and `labels`, `forward` (cell, file, line,
        source and variable of the first statement whose value is not finite, or None), `backward` (the first cell,
        from the loss back, that turns a finite gradient into one that is not, or None), `gradient_norms` (of the
        gradient times seed, by parameter, None where not finite).
    """
    inputs = [Tensor(np.ascontiguousarray(batch[key])) for key in ("input_ids", "labels", "position_ids")]
    inputs.append(Tensor(np.ascontiguousarray(batch["segment_ids"])))
    loss = SeededLoss(model)
    seed_tensor = Tensor(np.float32(seed))
    parameters = state.model_parameters
    counters = state.read_counters()
    with _pynative():
        forward, (_, loss_sum, labels, _) = _trace(loss, (*inputs, seed_tensor))
        state.write_counters(counters)
        backward, gradients = _differentiate(loss, model, parameters, (*inputs, seed_tensor))
        norms = {name: _norm(gradient) for name, gradient in zip(parameters, gradients, strict=True)}
        return {
            "weights": [name for name, parameter in parameters.items() if not is_finite(parameter)],
            "loss_sum": _finite_or_none(float(loss_sum.asnumpy())),
            "labels": int(labels.asnumpy()),
            "forward": forward,
            "backward": backward,
            "gradient_norms": norms,
        }


def locate(objective: nn.Cell, model: nn.Cell, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """Returns `weights`, `forward`, `backward` and `gradient_norms` as `diagnose` does, for any objective.

    `objective` holds `model` as its attribute of that name, and maps `inputs` to (what is differentiated, anything).
    """
    parameters = {parameter.name: parameter for parameter in model.trainable_params()}
    with _pynative():
        forward, _ = _trace(objective, inputs)
        backward, gradients = _differentiate(objective, model, parameters, inputs)
        norms = {name: _norm(gradient) for name, gradient in zip(parameters, gradients, strict=True)}
    weights = [name for name, parameter in parameters.items() if not is_finite(parameter)]
    return {"weights": weights, "forward": forward, "backward": backward, "gradient_norms": norms}


def is_finite(value: Any) -> bool:
    """Returns whether a tensor (or a tuple of them) holds no NaN and no infinity; other values count as finite."""
    if isinstance(value, tuple | list):
        return all(map(is_finite, value))
    if not isinstance(value, Tensor) or value.dtype not in _FLOATS:
        return True
    return bool(np.isfinite(value.asnumpy().astype(np.float64)).all())


@contextmanager
def _pynative() -> Iterator[None]:
    mode = mindspore.get_context("mode")
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mode)


def _trace(loss: nn.Cell, inputs: tuple[Any, ...]) -> tuple[dict[str, Any] | None, Any]:
    """Runs the forward pass and watches every statement outside MindSpore for a value that is not finite."""
    watch = _Watch({id(cell): name for name, cell in loss.cells_and_names()})
    previous = sys.gettrace()
    sys.settrace(watch.enter)
    try:
        outputs = loss(*inputs)
    finally:
        sys.settrace(previous)
    return watch.found, outputs


class _Watch:
    """A trace function: looks at the variables of each frame after each of its lines."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.found: dict[str, Any] | None = None
        self._names = names

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.found is not None or str(frame.f_globals.get("__name__", "")).partition(".")[0] == "mindspore":
            return None
        line = frame.f_lineno
        seen = {name: id(value) for name, value in frame.f_locals.items()}

        def look(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal line
            values = list(frame.f_locals.items())
            if event == "return":
                values.append(("return value", argument))
            for name, value in values:
                if self.found is None and seen.get(name) != id(value):
                    seen[name] = id(value)
                    if not isinstance(value, Parameter) and not is_finite(value):
                        self.found = self._describe(frame, line, name)
            line = frame.f_lineno
            return look

        return look

    def _describe(self, frame: FrameType, line: int, variable: str) -> dict[str, Any]:
        file = frame.f_code.co_filename
        cell = self._names.get(id(frame.f_locals.get("self")), "")
        return {
            "cell": cell.removeprefix("model.") or "model",
            "file": file,
            "line": line,
            "source": linecache.getline(file, line).strip(),
            "variable": variable,
        }


def _differentiate(
    loss: nn.Cell, model: nn.Cell, parameters: Mapping[str, Parameter], inputs: tuple[Any, ...]
) -> tuple[dict[str, Any] | None, Any]:
    first: list[dict[str, Any]] = []

    def hook_of(name: str) -> Any:
        def look(cell: nn.Cell, into: Any, out_of: Any) -> None:
            if not first and is_finite(tuple(out_of)) and not is_finite(tuple(into)):
                first.append({"cell": name or "model", "kind": type(cell).__name__})

        return look

    handles = [cell.register_backward_hook(hook_of(name)) for name, cell in model.cells_and_names()]
    try:
        differentiate = ops.value_and_grad(loss, None, ParameterTuple(parameters.values()), has_aux=True)
        _, gradients = differentiate(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return (first[0] if first else None), gradients


def _norm(gradient: Tensor) -> float | None:
    return _finite_or_none(float(np.sqrt((gradient.asnumpy().astype(np.float64) ** 2).sum())))


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
