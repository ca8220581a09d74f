"""Progress of long work in bytes: a bar with its rate on a terminal, a log line now and then elsewhere."""

import logging
import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

LOGGER = logging.getLogger(__name__)
_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts bytes towards a total."""

    def __init__(self, label: str, num_bytes: int, is_shown: bool) -> None:
        """Args: what is done, its size, and whether to show anything."""
        self._label, self._total, self._done = label, num_bytes, 0
        self._has_lines = is_shown and not sys.stderr.isatty()
        self._start = self._last = time.monotonic()
        # disable=None: a bar on terminals only
        disable = None if is_shown else True
        self._bar = tqdm(total=num_bytes, desc=label, unit="B", unit_scale=True, disable=disable)

    def add(self, num_bytes: int) -> None:
        """Counts bytes that are done."""
        self._done += num_bytes
        self._bar.update(num_bytes)
        now = time.monotonic()
        if self._has_lines and now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            rate = self._done / (now - self._start) / 1e9
            LOGGER.info("%s: %.1f of %.1f GB, %.2f GB/s", self._label, self._done / 1e9, self._total / 1e9, rate)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
