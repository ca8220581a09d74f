"""SIGTERM and SIGINT while training: the first asks to stop after the step, the second ends the process at once."""

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_LOG = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """Catches SIGTERM and SIGINT inside a `with` block; the previous handlers come back after it.

    After the first signal the system's default action is in force, so that the second one ends the process in the
    middle of whatever it does, with the signal as its status (a shell shows 143 or 130). Outside the main thread,
    where Python allows no handlers, nothing is caught.

    Attributes:
        number: The signal that came, or None.
    """

    def __init__(self) -> None:
        """Catches nothing yet."""
        self.number: int | None = None
        self._previous: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}

    @property
    def exit_code(self) -> int:
        """128 + signal: 143 for SIGTERM, 130 for SIGINT."""
        return 128 + (self.number or signal.SIGTERM)

    def __enter__(self) -> "StopSignal":
        """Starts to catch."""
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        else:
            _LOG.warning("training outside the main thread: SIGTERM and SIGINT will not save")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Gives the previous handlers back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
