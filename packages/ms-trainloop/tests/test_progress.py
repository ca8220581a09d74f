"""Tests of what is shown: plain lines and a terminal's bar."""

import io
import re

from ms_trainloop.progress import Progress


def test_plain_lines_come_two_seconds_apart_and_the_last_one_always():
    now, stream = [0.0], io.StringIO()
    progress = Progress(stream, steps=10, step=0, clock=lambda: now[0])

    for step in range(1, 11):
        progress.show({"step": step, "loss": 1.0, "learning_rate": 0.1, "tokens_per_second": 5.0}, 1.0)
        now[0] += 0.5

    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1/10", "5/10", "9/10", "10/10"]


def test_a_terminal_gets_a_bar_with_steps_loss_rate_speed_and_time_left():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    progress = Progress(stream, steps=10, step=4)

    progress.advance()
    progress.show({"step": 5, "loss": 1.25, "learning_rate": 0.1, "tokens_per_second": 1234.0}, 1.0)
    progress.say("evaluation")
    progress.close()

    shown = stream.getvalue()
    assert "5/10" in shown
    assert "loss 1.2500  lr 1.00e-01  1,234 tok/s" in shown
    assert re.search(r"\[\d\d:\d\d<(\d\d:\d\d|\?)", shown), "time passed and time left"
    assert "evaluation\n" in shown
