"""The learning rate as a closed form of the step, in float64; `rate.py` is the same formula inside the graph.

Steps are counted from 0 here: `step` is the number of steps already done, so a run of `steps` steps uses
0 ... steps - 1. With a = max(warmup_steps - 1, 0):

    warm-up     step < warmup_steps    peak * (step + 1) / warmup_steps       the last warm-up step has the peak
    after it    p = (step - a) / (steps - 1 - a), at most 1
        cosine      min + (peak - min) * (1 + cos(pi * p)) / 2                the last step has the minimum
        linear      min + (peak - min) * (1 - p)                              the last step has the minimum
        constant    peak

Without warm-up step 0 has the peak. If the warm-up fills the run, its last step has the peak and the minimum is
met only beyond the end; steps beyond the end have the minimum (`constant`: the peak).
"""

import math

from ms_trainloop.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Returns the rate used in the step that follows `step` finished ones; exact at every edge named above."""
    if step < 0:
        raise ValueError(f"step: found {step}, expected 0 or more")
    if step < config.warmup_steps:
        return config.learning_rate * ((step + 1) / config.warmup_steps)
    if config.schedule == "constant":
        return config.learning_rate
    start = max(config.warmup_steps - 1, 0)
    progress = min((step - start) / max(config.steps - 1 - start, 1), 1.0)
    weight = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return config.learning_rate * weight + config.min_learning_rate * (1 - weight)
