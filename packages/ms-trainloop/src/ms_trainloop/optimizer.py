"""The optimizer of a step: each parameter by its own rule, then half-precision copies and the running average."""

from collections.abc import Mapping
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F  # noqa: N812 - its usual name

from ms_trainloop.adamw import AdamW
from ms_trainloop.config import TrainConfig
from ms_trainloop.momentum import Muon, Sgd
from ms_trainloop.parameter_groups import treat
from ms_trainloop.slots import pick, store

RULES: dict[str, Any] = {"adamw": AdamW, "sgd": Sgd, "muon": Muon}


class Optimizer(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Updates parameters in place.

    Attributes:
        slots: `{slot: {name: Parameter}}`, the state to save. `ema` is the running average of the weights.
        treatments: Rule, rate and decay by parameter name.
    """

    def __init__(
        self, config: TrainConfig, parameters: Mapping[str, Parameter], copies: Mapping[str, Parameter]
    ) -> None:
        """Makes the states.

        Args:
            config: Section `train`.
            parameters: What is trained, by name.
            copies: Half-precision parameters of the model that follow the float32 one of the same name.
        """
        super().__init__(auto_prefix=False)
        self.treatments = {name: treat(name, weight.shape, config) for name, weight in parameters.items()}
        names = list(parameters)
        self.rules = nn.CellList(auto_prefix=False)
        picks, self.slots = [], dict[str, dict[str, Parameter]]()
        for rule, kind in RULES.items():
            chosen = {name: parameters[name] for name in names if self.treatments[name].rule == rule}
            if chosen:
                cell = kind(config, chosen, self.treatments)
                self.rules.append(cell)
                picks.append(tuple(names.index(name) for name in chosen))
                for slot, states in cell.slots.items():
                    self.slots.setdefault(slot, {}).update(states)
        self.picks, self.num_rules = tuple(picks), len(picks)
        self.sources = ParameterTuple([parameters[name] for name in copies if name in parameters])
        self.copies = ParameterTuple([copy for name, copy in copies.items() if name in parameters])
        self.num_copies = len(self.copies)
        self.map = ops.HyperMap()  # loops would nest a call an iteration, see step.py
        self.averaged = ParameterTuple(parameters.values())
        self.num_averages = 0
        if config.ema_decay:
            self.slots["ema"] = {
                name: Parameter(
                    Tensor(np.array(weight.asnumpy(), np.float32)), name=f"optimizer.ema.{name}", requires_grad=False
                )
                for name, weight in parameters.items()
            }
            self.averages = ParameterTuple(self.slots["ema"].values())
            self.num_averages = len(self.averages)
            self.ema_rest = 1.0 - config.ema_decay

    def construct(self, gradients: Any, factor: Any, learning_rate: Any, update: Any) -> Any:
        """Applies one update with `gradients * factor`; `update` counts from 1, int32 []. Returns `update`."""
        for k in range(self.num_rules):
            chosen = self.map(F.partial(pick, gradients), self.picks[k])
            self.rules[k](chosen, factor, learning_rate, update)
        if self.num_copies:
            self.map(store, self.copies, self.sources)
        if self.num_averages:
            self.map(F.partial(_average, self.ema_rest), self.averages, self.averaged)
        return update


def _average(rest: Any, average: Any, weight: Any) -> Any:
    return ops.assign(average, average + (ops.cast(weight, mindspore.float32) - average) * rest)
