"""The learning rate inside a graph: the formula of `schedules.py` in float32 on an int32 step."""

import math
from typing import Any

import mindspore
from mindspore import nn, ops

from ms_trainloop.config import TrainConfig


class LearningRate(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Maps the number of finished steps, int32 [], to the rate of the next one, float32 []."""

    def __init__(self, config: TrainConfig) -> None:
        """Takes the shape of the schedule from `config`; all constants are computed here, in float64.

        Graph mode folds Python arithmetic on attributes in float32, so none is left to `construct`.
        """
        super().__init__()
        self.kind = config.schedule
        self.peak = float(config.learning_rate)
        self.minimum = float(config.min_learning_rate)
        self.warmup = config.warmup_steps
        self.start = float(max(config.warmup_steps - 1, 0))
        self.span = float(max(config.steps - 1 - max(config.warmup_steps - 1, 0), 1))
        self.warmup_span = float(max(config.warmup_steps, 1))
        self.pi = math.pi

    def construct(self, step: Any) -> Any:
        """Returns peak * w + min * (1 - w), which is exact for w = 0 and w = 1."""
        done = ops.cast(step, mindspore.float32)
        warming = self.peak * ((done + 1.0) / self.warmup_span)
        falling = done * 0.0 + self.peak
        if self.kind != "constant":
            progress = ops.minimum((done - self.start) / self.span, 1.0)
            weight = 1.0 - progress
            if self.kind == "cosine":
                weight = (1.0 + ops.cos(progress * self.pi)) * 0.5
            falling = self.peak * weight + self.minimum * (1.0 - weight)
        return ops.select(step < self.warmup, warming, falling)
