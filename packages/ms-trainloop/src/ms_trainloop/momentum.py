"""The two rules with one state: SGD with momentum, and Muon for matrices; both equal to torch's of these names.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) replaces the momentum M by a nearby orthogonal matrix, with
five Newton-Schulz steps. Its update is scaled by 0.2 * sqrt(max(rows, columns)) (Liu et al. 2025, arXiv 2502.16982,
section 2.2), which makes its size that of AdamW's: one rate and one decay serve both.
"""

import math
from collections.abc import Mapping
from typing import Any

import mindspore
from mindspore import Parameter, ParameterTuple, nn, ops
from mindspore.ops import functional as F  # noqa: N812 - its usual name

from ms_trainloop.config import TrainConfig
from ms_trainloop.parameter_groups import Treatment
from ms_trainloop.slots import make_slot, store


class Sgd(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """buffer = momentum * buffer + g with g = gradient + decay * weight; weight -= rate * (g + momentum * buffer).

    Without `nesterov` the weight moves by rate * buffer. The decay is part of the gradient, as in torch.optim.SGD.

    Attributes:
        slots: `{"momentum_buffer": {name: Parameter}}`, the state to save.
    """

    def __init__(
        self, config: TrainConfig, parameters: Mapping[str, Parameter], treatments: Mapping[str, Treatment]
    ) -> None:
        """Makes the states of the named parameters, all zero."""
        super().__init__(auto_prefix=False)
        self.momentum, self.nesterov = float(config.momentum), config.nesterov
        self.weights = ParameterTuple(parameters.values())
        self.slots = {"momentum_buffer": make_slot("momentum_buffer", parameters, config.optimizer_state)}
        self.buffers = ParameterTuple(self.slots["momentum_buffer"].values())
        self.factors = tuple(treatments[name].learning_rate_factor for name in parameters)
        self.decays = tuple(treatments[name].weight_decay for name in parameters)
        self.map = ops.HyperMap()  # loops would nest a call an iteration, see step.py

    def construct(self, gradients: Any, factor: Any, learning_rate: Any, update: Any) -> Any:
        """Applies one update with `gradients * factor`. Returns `update`."""
        step = F.partial(self._step, factor, learning_rate)
        self.map(step, self.weights, self.buffers, gradients, self.factors, self.decays)
        return update

    def _step(
        self, factor: Any, learning_rate: Any, weight: Any, buffer: Any, gradient: Any, rate_factor: Any, decay: Any
    ) -> Any:
        value = ops.cast(weight, mindspore.float32)
        gradient = gradient * factor + value * decay
        kept = ops.cast(buffer, mindspore.float32) * self.momentum + gradient
        change = gradient + kept * self.momentum if self.nesterov else kept
        store(buffer, kept)
        store(weight, value - change * (learning_rate * rate_factor))
        return learning_rate


class Muon(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Like torch.optim.Muon with `adjust_lr_fn="match_rms_adamw"`, but in float32 where torch rounds to bfloat16.

    Attributes:
        slots: `{"momentum_buffer": {name: Parameter}}`, the state to save.
    """

    def __init__(
        self, config: TrainConfig, parameters: Mapping[str, Parameter], treatments: Mapping[str, Treatment]
    ) -> None:
        """Makes the states of the named matrices, all zero."""
        super().__init__(auto_prefix=False)
        self.momentum, self.rest, self.nesterov = float(config.momentum), 1.0 - config.momentum, config.nesterov
        self.weights = ParameterTuple(parameters.values())
        self.slots = {"momentum_buffer": make_slot("momentum_buffer", parameters, config.optimizer_state)}
        self.buffers = ParameterTuple(self.slots["momentum_buffer"].values())
        self.factors = tuple(treatments[name].learning_rate_factor for name in parameters)
        self.decays = tuple(treatments[name].weight_decay for name in parameters)
        self.sizes = tuple(0.2 * math.sqrt(max(weight.shape)) for weight in self.weights)
        self.orthogonalize = Orthogonalization()
        self.map = ops.HyperMap()  # loops would nest a call an iteration, see step.py

    def construct(self, gradients: Any, factor: Any, learning_rate: Any, update: Any) -> Any:
        """Applies one update with `gradients * factor`. Returns `update`."""
        step = F.partial(self._step, factor, learning_rate)
        self.map(step, self.weights, self.buffers, gradients, self.factors, self.decays, self.sizes)
        return update

    def _step(
        self, factor: Any, learning_rate: Any, weight: Any, buffer: Any, gradient: Any, rate_factor: Any, decay: Any,
        size: Any,
    ) -> Any:  # fmt: skip
        gradient = gradient * factor
        kept = ops.cast(buffer, mindspore.float32) * self.momentum + gradient * self.rest
        change = gradient * self.rest + kept * self.momentum if self.nesterov else kept
        value = ops.cast(weight, mindspore.float32)
        rate = learning_rate * rate_factor
        store(buffer, kept)
        store(weight, value * (1.0 - rate * decay) - self.orthogonalize(change) * (rate * size))
        return learning_rate


class Orthogonalization(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Maps a matrix U S V^T to about U V^T: five steps of the quintic Newton-Schulz iteration of Muon."""

    def __init__(self) -> None:
        """Takes no options."""
        super().__init__(auto_prefix=False)
        self.gram, self.multiply = ops.MatMul(transpose_b=True), ops.MatMul()

    def construct(self, matrix: Any) -> Any:
        """Returns a matrix of the same shape whose singular values lie around 1."""
        is_tall = matrix.shape[0] > matrix.shape[1]
        x = ops.transpose(matrix, (1, 0)) if is_tall else matrix
        x = x / ops.maximum(ops.sqrt(ops.square(x).sum()), 1e-7)
        for _ in range(5):
            gram = self.gram(x, x)
            x = x * 3.4445 + self.multiply(gram * -4.775 + self.multiply(gram, gram) * 2.0315, x)
        return ops.transpose(x, (1, 0)) if is_tall else x
