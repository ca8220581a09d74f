"""When a loss is a spike: measured against the mean and the spread of the steps before it."""

import math
from collections import deque
from collections.abc import Sequence

from ms_trainloop.config import TrainConfig

_LEAST_SPREAD = 0.01
"""As a share of the mean: at a plateau the standard deviation alone would call small changes spikes."""


class SpikeGuard:
    """Keeps the mean losses of the last applied steps and gives the limit of the next one."""

    def __init__(self, config: TrainConfig, losses: Sequence[float] = ()) -> None:
        """Starts with the saved losses of a resumed run."""
        self._is_on = config.spike_action != "off"
        self._deviations = config.spike_deviations
        self._losses: deque[float] = deque(losses, config.spike_window)

    @property
    def losses(self) -> list[float]:
        """What is saved: the losses of the window, oldest first."""
        return list(self._losses)

    @property
    def limit(self) -> float:
        """The largest loss that is no spike; infinite while the window is not full or the guard is off."""
        if not self._is_on or len(self._losses) < (self._losses.maxlen or 0):
            return math.inf
        mean = math.fsum(self._losses) / len(self._losses)
        spread = math.sqrt(math.fsum((loss - mean) ** 2 for loss in self._losses) / len(self._losses))
        return mean + self._deviations * max(spread, _LEAST_SPREAD * mean)

    def add(self, loss: float) -> None:
        """Takes the mean loss of an applied step into the window."""
        if self._is_on:
            self._losses.append(loss)
