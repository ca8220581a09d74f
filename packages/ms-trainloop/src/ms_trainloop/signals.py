"""What ends a run early: SIGTERM and SIGINT (the second one at once), and the time limit."""

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_LOG = logging.getLogger(__name__)
TIME_LIMIT_CODE = 75
"""Exit code of a run that used up its time: EX_TEMPFAIL of sysexits.h, run it again."""
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


class StopRequest:
    """Whether this rank wants the run to end after the step it is in."""

    def __init__(self, signals: StopSignal, *, max_minutes: float, clock: Callable[[], float]) -> None:
        """Starts the time limit (0: none); `clock` is in seconds."""
        self._signals, self._clock = signals, clock
        self._end = clock() + 60 * max_minutes if max_minutes else None

    def __bool__(self) -> bool:
        """True after a signal or at the time limit."""
        return self._signals.number is not None or (self._end is not None and self._clock() >= self._end)

    @property
    def reason(self) -> str:
        """What ended the run, in words. A rank that follows another one's request names what it can know."""
        return "train.max_minutes" if self._is_time else "a signal"

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM, 130 for SIGINT, 75 for the time limit."""
        return TIME_LIMIT_CODE if self._is_time else self._signals.exit_code

    @property
    def _is_time(self) -> bool:
        return self._signals.number is None and self._end is not None
