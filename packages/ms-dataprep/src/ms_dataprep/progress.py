"""Progress of long work: a bar on a terminal, a plain log line every few seconds elsewhere."""

import logging
import sys
import time
from types import TracebackType
from typing import Any, Self

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Counts bytes against a total, and documents beside them."""

    def __init__(self, name: str, total_bytes: int, *, shown: bool = True) -> None:
        self._name = name
        self._total = max(1, total_bytes)
        self._shown = shown
        self._done = 0
        self._documents = 0
        self._began = self._last_line = time.monotonic()
        self._bar: Any = None
        if shown and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self._total, desc=name, unit="B", unit_scale=True)

    def advance(self, num_bytes: int, num_documents: int) -> None:
        """Tells how many bytes and documents were done since the last call."""
        self._done += num_bytes
        self._documents += num_documents
        if self._bar is not None:
            self._bar.update(num_bytes)
            self._bar.set_postfix(documents=self._documents, refresh=False)
        elif self._shown and time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self._log_line()

    def _log_line(self) -> None:
        seconds = time.monotonic() - self._began
        rate = self._done / max(seconds, 1e-9)
        left = (self._total - self._done) / max(rate, 1e-9)
        logger.info(
            "%s: %d documents, %.1f of %.1f MB, %.1f MB/s, %.0f s left",
            self._name, self._documents, self._done / 1e6, self._total / 1e6, rate / 1e6, left,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._shown and kind is None:
            self._log_line()
