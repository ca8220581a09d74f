"""What a person sees while training: a bar with loss, rate and speed on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 2.0
"""On a stream that is no terminal, so that `log_every: 1` does not fill a log; the metrics file has every line."""


class Progress:
    """Shows the steps of a run on a stream; None shows nothing."""

    def __init__(
        self, stream: TextIO | None, *, steps: int, step: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Starts at `step` of `steps`; `clock` in seconds spaces the lines of a stream that is no terminal."""
        self._clock = clock
        self._next_line = clock()
        self._stream = stream
        self._steps = steps
        self._bar: Any = None
        if stream is not None and stream.isatty():
            self._bar = tqdm(total=steps, initial=step, file=stream, unit="step", dynamic_ncols=True)

    def advance(self) -> None:
        """Counts one step."""
        if self._bar is not None:
            self._bar.update(1)

    def rewind(self, step: int) -> None:
        """Goes back to a step."""
        if self._bar is not None:
            self._bar.n = step
            self._bar.refresh()

    def show(self, line: Mapping[str, Any], seconds_left: float | None) -> None:
        """Shows the figures of a `train` line of the metrics."""
        loss = "not finite" if line["loss"] is None else f"{line['loss']:.4f}"
        speed = "?" if line["tokens_per_second"] is None else f"{line['tokens_per_second']:,.0f}"
        text = f"loss {loss}  lr {line['learning_rate']:.2e}  {speed} tok/s"
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        elif self._clock() >= self._next_line or line["step"] == self._steps:
            self._next_line = self._clock() + _SECONDS_BETWEEN_LINES
            left = "?" if seconds_left is None else format_seconds(seconds_left)
            self.say(f"step {line['step']}/{self._steps}  {text}  {left} left")

    def say(self, text: str) -> None:
        """Shows a line of text without tearing the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        elif self._stream is not None:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def format_seconds(seconds: float) -> str:
    """Returns `1:02:03`, or `02:03` under an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
