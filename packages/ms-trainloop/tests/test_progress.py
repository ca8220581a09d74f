import io

from ms_trainloop.progress import Progress


def test_plain_lines_come_two_seconds_apart_and_the_last_one_always():
    now, stream = [0.0], io.StringIO()
    progress = Progress(stream, steps=10, step=0, clock=lambda: now[0])

    for step in range(1, 11):
        progress.show({"step": step, "loss": 1.0, "learning_rate": 0.1, "tokens_per_second": 5.0}, 1.0)
        now[0] += 0.5

    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["1/10", "5/10", "9/10", "10/10"]
