"""The learning rate as a closed form of the step, in float64; `rate.py` is the same formula inside the graph.

Steps are counted from 0 here: `step` is the number of steps already done, so a run of `steps` steps uses
0 ... steps - 1. With a = max(warmup_steps - 1, 0), peak = learning_rate, min = min_learning_rate, D = decay_steps:

    warm-up     step < warmup_steps    peak * (step + 1) / warmup_steps       the last warm-up step has the peak
    after it    p = (step - a) / (steps - 1 - a), at most 1
        cosine           min + (peak - min) * (1 + cos(pi * p)) / 2           the last step has the minimum
        linear           min + (peak - min) * (1 - p)                         the last step has the minimum
        polynomial       min + (peak - min) * (1 - p)^polynomial_power        the last step has the minimum
        constant         peak
        inverse_sqrt     max(min, peak * sqrt((a + 1) / (step + 1)))          Vaswani et al. 2017, section 5.3
        wsd              peak up to step steps - 1 - D, then with q = (step - (steps - 1 - D)) / D, at most 1,
                         min + (peak - min) * (1 - q), or (1 - sqrt(q)) for decay_shape sqrt; the last step has the
                         minimum (warm-up, stable, decay; Hu et al. 2024, section 4)
        cosine_restarts  cycles of T, T * m, T * m^2 ... steps (T restart_steps, m restart_factor), the first from
                         step a on; in each q = (step - its first step) / (its steps - 1) and cosine with q: its first
                         step has the peak, its last one the minimum (after Loshchilov and Hutter 2017)

Without warm-up step 0 has the peak. If the warm-up fills the run, its last step has the peak and the minimum is
met only beyond the end; steps beyond the end have the minimum (`constant`: the peak; `inverse_sqrt`: its formula).
"""

import math

from ms_trainloop.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Returns the rate used in the step that follows `step` finished ones; exact at every edge named above."""
    if step < 0:
        raise ValueError(f"step: found {step}, expected 0 or more")
    peak, minimum = config.learning_rate, config.min_learning_rate
    if step < config.warmup_steps:
        return peak * ((step + 1) / config.warmup_steps)
    start = max(config.warmup_steps - 1, 0)
    if config.schedule == "inverse_sqrt":
        return max(minimum, peak * math.sqrt((start + 1) / (step + 1)))
    weight = _weight(config, step, start)
    return peak * weight + minimum * (1 - weight)


def restart_cycles(config: TrainConfig) -> list[tuple[int, int]]:
    """Returns (first step, steps) of each cycle of `cosine_restarts` that begins within the run."""
    first, length, cycles = max(config.warmup_steps - 1, 0), config.restart_steps, []
    while first < config.steps:
        cycles.append((first, length))
        first, length = first + length, length * config.restart_factor
    return cycles


def _weight(config: TrainConfig, step: int, start: int) -> float:
    """The share of the peak: 1 at the peak, 0 at the minimum."""
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        share = min(max((step - (config.steps - 1 - config.decay_steps)) / config.decay_steps, 0.0), 1.0)
        return 1 - (math.sqrt(share) if config.decay_shape == "sqrt" else share)
    if config.schedule == "cosine_restarts":
        if step >= config.steps:
            return 0.0
        length, step = config.restart_steps, step - start
        while step >= length and config.restart_factor > 1:
            step, length = step - length, length * config.restart_factor
        return (1 + math.cos(math.pi * (step % length / (length - 1)))) / 2
    progress = min((step - start) / max(config.steps - 1 - start, 1), 1.0)
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    return float((1 - progress) ** (config.polynomial_power if config.schedule == "polynomial" else 1.0))
