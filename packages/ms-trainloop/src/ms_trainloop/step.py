"""The training step as one graph-mode Cell: forward, backward, accumulation, clipping, optimizer, loss scale, counters.

Shapes: [micro, batch, seq] is [micro-batches of one step, rows of one forward pass on this rank, tokens of a row].
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F  # noqa: N812 - its usual name

from ms_trainloop.config import TrainConfig
from ms_trainloop.diagnosis import NO_AUXILIARY, SeededLoss
from ms_trainloop.errors import ConfigError, TrainLoopError
from ms_trainloop.graph_cache import cached_compilation
from ms_trainloop.model_state import ModelState
from ms_trainloop.optimizer import Optimizer
from ms_trainloop.precision import require_possible
from ms_trainloop.rate import LearningRate
from ms_trainloop.slots import pick

NO_LIMIT = 1e30
"""A limit of the mean loss that no finite loss exceeds."""


class StepResult(NamedTuple):
    """What one step did, over all ranks and micro-batches."""

    loss_sum: float
    """Sum of token losses in nats."""
    tokens: int
    """Labels that took part."""
    grad_norm: float
    """Global L2 norm of the gradient of the mean loss, before clipping; not finite when the step was skipped."""
    learning_rate: float
    """Rate of this step."""
    loss_scale: float
    """Scale this step used."""
    is_applied: bool
    """False if the gradient was not finite, the loss above its limit, or there was no label: nothing was changed."""
    stop_votes: int
    """Ranks that asked to stop."""
    auxiliary_loss: float | None = None
    """What the model adds to the mean token loss (a router's losses, say); None if it adds nothing finite."""

    @property
    def is_spike(self) -> bool:
        """Whether the step was skipped only because its loss was above the limit."""
        return not self.is_applied and self.tokens > 0 and math.isfinite(self.grad_norm)


class TrainStep(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Takes `[micro, batch, seq]` int32 inputs, updates the weights in place and returns eight numbers, float32 [8].

    `run` is the same with a batch of contract `batch` in and a StepResult out. The numbers are StepResult's fields.
    Gradients are those of the token-weighted mean loss of the global batch, whatever the micro-batches and ranks; an
    auxiliary loss is the model's own for each micro-batch, weighted by its labels.
    Making a TrainStep sets MindSpore's global mode to `config.mode`, and the model to training mode.
    """

    NOT_COMPILED = ("storage", "counters_before", "is_warm", "backward")
    """Attributes that a hash of the graph leaves out: `backward` holds the time it was made, and besides it only what
    `model`, `state` and the source say."""

    def __init__(
        self,
        model: nn.Cell,
        config: TrainConfig,
        *,
        parameters: Mapping[str, Parameter] | None = None,
        all_reduce: Callable[[Any], Any] | None = None,
        world_size: int = 1,
    ) -> None:
        """Prepares the step; nothing is compiled before the first call.

        Args:
            model: Called as `model(input_ids, position_ids, segment_ids)`, returns logits [batch, seq, vocab], or
                in training (logits, auxiliary loss): a float32 scalar, a mean over tokens, that is to be lowered too.
            config: Section `train`. Its `frozen` and `precision` change the model's parameters in place.
            parameters: Every parameter of the model by the name under which it is saved and matched by patterns;
                by default MindSpore's names. Those with `requires_grad` are trained, the others only saved
                (`cache.*` and `constant.*` not even that).
            all_reduce: A Cell or function that graph mode can compile: float32 tensor in, its sum over the ranks out.
            world_size: Number of ranks `all_reduce` sums over.

        Raises:
            ConfigError: The precision is not possible here, or the batch sizes do not fit the ranks.
            TrainLoopError: `parameters` is not exactly the model's parameters, or they cannot be trained.
        """
        super().__init__(auto_prefix=False)
        require_possible(config)
        if (all_reduce is None) != (world_size == 1):
            raise ConfigError(f"world_size: found {world_size} and all_reduce {all_reduce!r}; give both or neither")
        mindspore.set_context(mode=mindspore.GRAPH_MODE if config.mode == "graph" else mindspore.PYNATIVE_MODE)
        self.config = config
        self.model = model
        self.world_size = world_size
        self.state = ModelState(model, config, parameters)
        self.named_parameters = self.state.saved
        self.accumulation = config.accumulation_steps(world_size)
        self.optimizer = Optimizer(config, self.state.trained, self.state.copies)
        self.learning_rate = LearningRate(config)
        self.step = _counter("step", 0)
        self.updates = _counter("updates", 0)
        self.skipped_in_row = _counter("skipped_in_row", 0)
        self.good_steps = _counter("good_steps", 0)
        self.loss_scale = _counter("loss_scale", config.loss_scale if config.precision == "float16" else 1.0)
        self.is_scale_dynamic = config.precision == "float16" and config.loss_scale_window > 0
        self.window = config.loss_scale_window
        self.floor = float(config.loss_scale_floor)
        self.max_norm = float(config.max_grad_norm)
        self.reduce = _Identity() if all_reduce is None else all_reduce
        self.is_reduced = all_reduce is not None
        weights = ParameterTuple(self.state.model_parameters.values())
        # has_aux: without it the gradient would be that of the sum of all three outputs.
        self.backward = ops.value_and_grad(SeededLoss(model), None, weights, has_aux=True)
        self.is_half = any(weight.dtype != mindspore.float32 for weight in weights)
        # Not loops: graph mode nests what follows an iteration into a call, 1000 deep at about 100 parameters.
        self.map, self.add = ops.HyperMap(), ops.Add()
        self.places = tuple(range(len(self.state.trained)))
        self.first = Tensor(np.int32(1))
        self.storage: dict[str, int] = {}
        self.is_warm = False
        """Whether the compiled step came from the compile cache."""
        self.counters_before: dict[str, np.ndarray[Any, Any]] = {}
        """The model's own counters before the last step, for a record of it."""
        self.set_train(True)  # a Cell is in evaluation mode until told otherwise, and its dropout off

    def construct(
        self,
        input_ids: Any,
        labels: Any,
        position_ids: Any,
        segment_ids: Any,
        loss_limit: Any = NO_LIMIT,
        stop_vote: Any = 0.0,
    ) -> Any:
        """Runs one step on [micro, batch, seq] tensors.

        `loss_limit` skips the step if the mean loss is above it; `stop_vote` is 1 if this rank wants to stop after it.
        """
        scale = self.loss_scale + 0.0
        slots = float(labels.shape[0] * labels.shape[1] * labels.shape[2])
        # The backward pass starts from scale / slots, not scale: a summed loss would overflow float16 early.
        seed = scale / slots
        (_, loss_sum, count, auxiliary_sum), gradients = self.backward(
            input_ids[0], labels[0], position_ids[0], segment_ids[0], seed
        )
        if self.is_half:
            gradients = self.map(_in_float32, gradients)
        if self.accumulation > 1:
            i = self.first
            while i < self.accumulation:
                (_, more_loss, more_count, more_auxiliary), more = self.backward(
                    ops.gather(input_ids, i, 0),
                    ops.gather(labels, i, 0),
                    ops.gather(position_ids, i, 0),
                    ops.gather(segment_ids, i, 0),
                    seed,
                )
                if self.is_half:
                    more = self.map(_in_float32, more)
                gradients = self.map(self.add, gradients, more)
                loss_sum = loss_sum + more_loss
                count = count + more_count
                auxiliary_sum = auxiliary_sum + more_auxiliary
                i = i + 1
            # Where all gradients have one shape, the loop gives a tuple without a known length; so it is known again.
            gradients = self.map(F.partial(pick, gradients), self.places)
        votes = count * 0.0 + stop_vote
        if self.is_reduced:
            gradients = self.map(self.reduce, gradients)
            totals = self.reduce(ops.stack((loss_sum, count, votes, auxiliary_sum)))
            loss_sum, count, votes, auxiliary_sum = totals[0], totals[1], totals[2], totals[3]
        is_calm = loss_sum <= loss_limit * ops.maximum(count, 1.0)
        return self._finish(gradients, (loss_sum, count, votes, auxiliary_sum), is_calm, scale, slots)

    def _finish(self, gradients: Any, totals: Any, is_calm: Any, scale: Any, slots: Any) -> Any:
        loss_sum, count, votes, auxiliary_sum = totals
        unscale = slots / (scale * ops.maximum(count, 1.0))
        norm = ops.sqrt(ops.stack(self.map(_sum_of_squares, gradients)).sum()) * unscale
        factor = unscale
        if self.max_norm > 0.0:
            factor = unscale * ops.minimum(self.max_norm / (norm + 1e-6), 1.0)
        rate = self.learning_rate(self.step)
        is_finite = ops.isfinite(norm)
        is_applied = ops.logical_and(ops.logical_and(is_finite, is_calm), count > 0.0)
        applied = ops.cast(is_applied, mindspore.int32)
        update = self.updates + applied
        if is_applied:
            self.optimizer(gradients, factor, rate, update)
        good = self.good_steps * ops.cast(is_finite, mindspore.int32) + applied
        if self.is_scale_dynamic:
            grown = ops.select(good >= self.window, ops.minimum(scale * 2.0, 16777216.0), scale)
            ops.assign(self.loss_scale, ops.select(is_finite, grown, ops.maximum(scale * 0.5, self.floor)))
            good = good * ops.cast(good < self.window, mindspore.int32)
        ops.assign(self.good_steps, good)
        ops.assign(self.updates, update)
        ops.assign(self.skipped_in_row, (self.skipped_in_row + 1) * (1 - applied))
        ops.assign(self.step, self.step + 1)
        applied_float = ops.cast(is_applied, mindspore.float32)
        auxiliary = auxiliary_sum / ops.maximum(count, 1.0)
        return ops.stack((loss_sum, count, norm, rate, scale, applied_float, votes, auxiliary))

    def run(
        self, batch: Mapping[str, np.ndarray[Any, Any]], *, wants_stop: bool = False, loss_limit: float = NO_LIMIT
    ) -> StepResult:
        """Runs one step on this rank's part of the global batch, int32 arrays [micro * batch, seq].

        A mean loss above `loss_limit` (nats) skips the step.

        Raises:
            TrainLoopError: A weight was replaced by `set_data` after the first step (checked on CPU, graph mode).
        """
        self._require_same_storage()
        self.counters_before = self.state.read_counters()
        tensors = []
        for key in ("input_ids", "labels", "position_ids", "segment_ids"):
            rows = np.ascontiguousarray(batch[key])
            tensors.append(Tensor(rows.reshape(self.accumulation, self.config.micro_batch_size, -1)))
        tensors.append(Tensor(np.float32(min(loss_limit, NO_LIMIT))))
        if self.is_reduced:
            tensors.append(Tensor(np.float32(wants_stop)))
        numbers = [float(number) for number in self._call(tensors).asnumpy()]
        return StepResult(
            loss_sum=numbers[0],
            tokens=int(numbers[1]),
            grad_norm=numbers[2],
            learning_rate=numbers[3],
            loss_scale=numbers[4],
            is_applied=numbers[5] == 1.0,
            stop_votes=int(numbers[6]) if self.is_reduced else int(wants_stop),
            auxiliary_loss=numbers[7] if math.isfinite(numbers[7]) and numbers[7] > NO_AUXILIARY * 1e-10 else None,
        )

    def _call(self, tensors: list[Tensor]) -> Tensor:
        """Calls the step; the first call goes through the compile cache if there is one."""
        if self.compile_cache or not self.config.compile_cache or self.config.mode != "graph":
            return self(*tensors)
        key = (asdict(self.config), [(str(tensor.dtype), tensor.shape) for tensor in tensors])
        with cached_compilation(Path(self.config.compile_cache), self, *key) as self.is_warm:
            return self(*tensors)

    def averaged(self) -> AbstractContextManager[None]:
        """Puts the running average into the model inside a `with` block; its own weights come back to the bit.

        Raises:
            ConfigError: `ema_decay` is 0.
        """
        if "ema" not in self.optimizer.slots:
            raise ConfigError("train.ema_decay: found 0; set it above 0 to keep a running average of the weights")
        return self.state.replaced(self.optimizer.slots["ema"])

    def _require_same_storage(self) -> None:
        """A graph with control flow keeps the storage it first ran on: new storage would be ignored without a word.

        Costs about 1 us a parameter. The addresses are only known to be stable on CPU.
        """
        if self.config.mode != "graph" or mindspore.get_context("device_target") != "CPU":
            return
        watched = {**self.named_parameters, **{f"{n} (half)": copy for n, copy in self.state.copies.items()}}
        storage = {name: parameter.data_ptr() for name, parameter in watched.items()}
        if not self.compile_cache:
            self.state.require_equal_copies()
            self.storage = storage
        elif replaced := [name for name, address in storage.items() if self.storage[name] != address]:
            raise TrainLoopError(
                f"{', '.join(replaced)}: given new storage after the step was compiled (set_data,"
                " load_param_into_net), which the compiled step ignores; write in place instead, with"
                " mindspore.ops.assign(parameter, value), or make a new TrainStep"
            )


class _Identity(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    def construct(self, tensor: Any) -> Any:
        return tensor


def _in_float32(gradient: Any) -> Any:
    return ops.cast(gradient, mindspore.float32)


def _sum_of_squares(gradient: Any) -> Any:
    return ops.square(gradient).sum()


def _counter(name: str, value: float) -> Parameter:
    dtype = np.float32 if isinstance(value, float) else np.int32
    return Parameter(Tensor(np.array(value, dtype)), name=f"trainloop.{name}", requires_grad=False)
