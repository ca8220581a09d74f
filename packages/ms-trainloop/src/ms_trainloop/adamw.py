"""AdamW (Loshchilov and Hutter 2019, algorithm 2) with bias correction, equal to torch.optim.AdamW.

MindSpore's fused AdamWeightDecay kernel has no bias correction, but gives exact AdamW when it is fed
lr * c1 / c2, epsilon / c2 and decay * c2 / c1 with c1 = 1 / (1 - beta1^t), c2 = 1 / sqrt(1 - beta2^t).
It is up to a quarter faster than a step of small operators, which do the same where weights or states are not float32.
"""

import math
from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, nn, ops
from mindspore.ops import functional as F  # noqa: N812 - its usual name

from ms_trainloop.config import TrainConfig
from ms_trainloop.parameter_groups import Treatment, treat
from ms_trainloop.slots import make_slot, pick, store


class AdamW(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Updates parameters in place.

    Attributes:
        slots: `{"exp_avg": {name: Parameter}, "exp_avg_sq": {...}}`, the state to save, named as torch does.
    """

    def __init__(
        self,
        config: TrainConfig,
        parameters: Mapping[str, Parameter],
        treatments: Mapping[str, Treatment] | None = None,
    ) -> None:
        """Makes the states of the named parameters, all zero; without `treatments` the config gives them."""
        super().__init__(auto_prefix=False)
        # float32 values of the betas throughout: then (1 - beta) in the kernel and in the correction are the same
        # number, and the correction is exact although 1 - float32(0.999) is 5e-5 away from 0.001.
        self.beta1, self.beta2 = float(np.float32(config.beta1)), float(np.float32(config.beta2))
        self.rest1, self.rest2 = 1.0 - self.beta1, 1.0 - self.beta2
        self.log_beta1 = math.log(self.beta1) if self.beta1 > 0 else -1e30
        self.log_beta2 = math.log(self.beta2)
        self.epsilon = float(config.epsilon)
        self.weights = ParameterTuple(parameters.values())
        if treatments is None:
            treatments = {name: treat(name, weight.shape, config) for name, weight in parameters.items()}
        kind_of = [(treatments[name].learning_rate_factor, treatments[name].weight_decay) for name in parameters]
        kinds = list(dict.fromkeys(kind_of))
        self.kind_of = tuple(kinds.index(kind) for kind in kind_of)
        self.factors, self.decays = tuple(kind[0] for kind in kinds), tuple(kind[1] for kind in kinds)
        self.num_kinds = len(kinds)
        self.slots = {slot: make_slot(slot, parameters, config.optimizer_state) for slot in ("exp_avg", "exp_avg_sq")}
        self.exp_avg = ParameterTuple(self.slots["exp_avg"].values())
        self.exp_avg_sq = ParameterTuple(self.slots["exp_avg_sq"].values())
        is_whole = config.optimizer_state == "float32"
        self.is_fused = tuple(is_whole and weight.dtype == mindspore.float32 for weight in self.weights)
        self.map = ops.HyperMap()  # loops would nest a call an iteration, see step.py
        self.kernel = ops.AdamWeightDecay()

    def construct(self, gradients: Any, factor: Any, learning_rate: Any, update: Any) -> Any:
        """Applies one update with `gradients * factor`; `update` counts from 1, int32 []. Returns `update`."""
        t = ops.cast(update, mindspore.float32)
        c1 = 1.0 / _one_minus_exp(t * self.log_beta1)
        c2 = ops.rsqrt(_one_minus_exp(t * self.log_beta2))
        epsilon = self.epsilon / c2
        kinds_rates: Any = ()
        kinds_decays: Any = ()
        for k in range(self.num_kinds):
            kinds_rates += (learning_rate * self.factors[k] * c1 / c2,)
            kinds_decays += (c2 * self.decays[k] / c1,)
        rates = self.map(F.partial(pick, kinds_rates), self.kind_of)
        decays = self.map(F.partial(pick, kinds_decays), self.kind_of)
        step = F.partial(self._step, factor, epsilon)
        self.map(step, self.weights, self.exp_avg, self.exp_avg_sq, gradients, rates, decays, self.is_fused)
        return update

    def _step(
        self, factor: Any, epsilon: Any, weight: Any, exp_avg: Any, exp_avg_sq: Any, gradient: Any, rate: Any,
        decay: Any, is_fused: Any,
    ) -> Any:  # fmt: skip
        gradient = gradient * factor
        if is_fused:
            self.kernel(weight, exp_avg, exp_avg_sq, rate, self.beta1, self.beta2, epsilon, decay, gradient)
        else:
            mean = ops.cast(exp_avg, mindspore.float32) * self.beta1 + gradient * self.rest1
            square = ops.cast(exp_avg_sq, mindspore.float32) * self.beta2 + gradient * gradient * self.rest2
            value = ops.cast(weight, mindspore.float32)
            change = mean / (ops.sqrt(square) + epsilon) + value * decay
            store(exp_avg, mean)
            store(exp_avg_sq, square)
            store(weight, value - change * rate)
        return rate


def _one_minus_exp(x: Any) -> Any:
    """1 - exp(x) for x <= 0 to float32 accuracy; the CPU's expm1 errs by 1e-5, and 1 - exp(x) cancels near 0."""
    near = ops.maximum(x, -0.5)
    series = 1.0 + near / 9.0
    for divisor in (8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0):
        series = 1.0 + near / divisor * series
    return ops.select(x > -0.5, -near * series, 1.0 - ops.exp(x))
