"""Progress of long work in bytes: a bar with its rate on a terminal, a log line now and then elsewhere."""

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Self

LOGGER = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_DRAWINGS = 0.1
_WIDTH = 30


class Progress:
    """Counts bytes towards a total; several threads may add."""

    def __init__(self, label: str, num_bytes: int, is_shown: bool) -> None:
        """Args: what is done, its size, and whether to show anything."""
        self._label, self._total, self._done = label, num_bytes, 0
        self._has_bar = is_shown and sys.stderr.isatty()
        self._has_lines = is_shown and not self._has_bar
        self._start = self._last = time.monotonic()
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        """Counts bytes that are done."""
        with self._lock:
            self._done += num_bytes
            now = time.monotonic()
            if self._has_bar and now - self._last >= _SECONDS_BETWEEN_DRAWINGS:
                self._last = now
                sys.stderr.write(f"\r{self.line()}")
                sys.stderr.flush()
            elif self._has_lines and now - self._last >= _SECONDS_BETWEEN_LINES:
                self._last = now
                LOGGER.info("%s", self.line())

    def line(self) -> str:
        """What a look at the bar tells."""
        seconds = max(time.monotonic() - self._start, 1e-9)
        share = self._done / self._total if self._total else 1.0
        rate = self._done / seconds
        left = (self._total - self._done) / rate if rate else 0.0
        bar = "#" * int(share * _WIDTH)
        return (
            f"{self._label} [{bar:<{_WIDTH}}] {share:4.0%}  {self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB, "
            f"{rate / 1e9:.2f} GB/s, {left:.0f} s left"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_bar:
            sys.stderr.write(f"\r{self.line()}\n")
