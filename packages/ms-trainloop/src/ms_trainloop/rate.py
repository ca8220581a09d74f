"""The learning rate inside a graph: the formulas of `schedules.py` in float32 on an int32 step."""

import math
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops

from ms_trainloop.config import TrainConfig
from ms_trainloop.schedules import restart_cycles


class LearningRate(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Maps the number of finished steps, int32 [], to the rate of the next one, float32 []."""

    def __init__(self, config: TrainConfig) -> None:
        """Takes the shape of the schedule from `config`; all constants are computed here, in float64.

        Graph mode folds Python arithmetic on attributes in float32, so none is left to `construct`.
        """
        super().__init__(auto_prefix=False)
        self.kind = config.schedule
        self.peak = float(config.learning_rate)
        self.minimum = float(config.min_learning_rate)
        self.warmup, self.steps = config.warmup_steps, config.steps
        start = max(config.warmup_steps - 1, 0)
        self.start, self.span = float(start), float(max(config.steps - 1 - start, 1))
        self.warmup_span = float(max(config.warmup_steps, 1))
        if self.kind == "wsd":
            self.start, self.span = float(config.steps - 1 - config.decay_steps), float(config.decay_steps)
        self.is_sqrt = self.kind == "wsd" and config.decay_shape == "sqrt"
        self.is_cosine = self.kind in ("cosine", "cosine_restarts")
        self.power = float(config.polynomial_power)
        self.root = math.sqrt(start + 1)
        self.pi = math.pi
        if self.kind == "cosine_restarts":
            self.first_step, self.period, self.is_periodic = start, config.restart_steps, config.restart_factor == 1
            cycles = restart_cycles(config) if not self.is_periodic else [(start, config.restart_steps)]
            self.cycle_starts = Tensor(np.array([first for first, _ in cycles], np.int32))
            self.cycle_spans = Tensor(np.array([length - 1 for _, length in cycles], np.float32))

    def construct(self, step: Any) -> Any:
        """Returns peak * w + min * (1 - w), which is exact for w = 0 and w = 1."""
        done = ops.cast(step, mindspore.float32)
        warming = self.peak * ((done + 1.0) / self.warmup_span)
        if self.kind == "constant":
            falling = done * 0.0 + self.peak
        elif self.kind == "inverse_sqrt":
            falling = ops.maximum(self.peak * (self.root / ops.sqrt(done + 1.0)), self.minimum)
        else:
            progress = self._progress(step, done)
            weight = 1.0 - progress
            if self.is_cosine:
                weight = (1.0 + ops.cos(progress * self.pi)) * 0.5
            elif self.kind == "polynomial":
                weight = ops.pow(weight, self.power)
            elif self.is_sqrt:
                weight = 1.0 - ops.sqrt(progress)
            falling = self.peak * weight + self.minimum * (1.0 - weight)
        return ops.select(step < self.warmup, warming, falling)

    def _progress(self, step: Any, done: Any) -> Any:
        """0 at the peak, 1 at the minimum."""
        if self.kind != "cosine_restarts":
            return ops.minimum(ops.maximum((done - self.start) / self.span, 0.0), 1.0)
        if self.is_periodic:
            inside = ops.cast((step - self.first_step) % self.period, mindspore.float32) / self.cycle_spans[0]
        else:
            has_begun = ops.cast(self.cycle_starts <= step, mindspore.int32)
            cycle = ops.maximum(has_begun.sum() - 1, 0)
            first = ops.gather(self.cycle_starts, cycle, 0)
            inside = ops.cast(step - first, mindspore.float32) / ops.gather(self.cycle_spans, cycle, 0)
        return ops.select(step < self.steps, inside, done * 0.0 + 1.0)
