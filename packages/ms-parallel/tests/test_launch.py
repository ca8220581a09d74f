import io
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from ms_parallel import LaunchError, launch
from ms_parallel.processes import status

FAIL_LATE = """
import os, pathlib, sys, time
print("rank", os.environ["RANK_ID"], "begins", flush=True)
begun = pathlib.Path(sys.argv[1])
if os.environ["RANK_ID"] == "1":
    while not begun.exists():
        time.sleep(0.01)
    time.sleep(0.5)  # what rank 0 printed has half a second to be shown
    sys.exit("the reason why")
begun.touch()
time.sleep(600)
"""
SAVE_ON_SIGNAL = """
import signal, sys, time
def save(number, frame):
    print("saving"); time.sleep(1.5); print("saved"); sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""
LAUNCH = (
    "import sys; from ms_parallel import launch; sys.exit(launch(sys.argv[2:], num_workers=2, log_dir=sys.argv[1]))"
)

SUMS = """
import mindspore, numpy as np
from mindspore import nn, ops
from ms_parallel import DivergedError, current_rank
from ms_parallel.mindspore import AllReduceSum, RankError, broadcast_parameters, check_equal_parameters, init
try:
    AllReduceSum()
except RankError as error:
    print("before init:", error)
rank = init()
assert rank == current_rank()
mindspore.set_context(mode=mindspore.GRAPH_MODE)
class Step(nn.Cell):
    def __init__(self, weight):
        super().__init__()
        self.weight, self.reduce = weight, AllReduceSum()
        self.gradient = ops.value_and_grad(self.loss, None, mindspore.ParameterTuple([weight]))
    def loss(self, x):
        return (self.weight * x).sum()
    def construct(self, x):
        loss, gradients = self.gradient(x)
        return self.reduce(loss), self.reduce(gradients[0])
weight = mindspore.Parameter(mindspore.Tensor(np.full(3, 2.0, np.float32)), name="weight")
loss, gradient = Step(weight)(mindspore.Tensor(np.arange(3, dtype=np.float32) + 10 * rank.rank))
print("loss", float(loss.asnumpy()), "gradient", gradient.asnumpy().tolist())
same = mindspore.Parameter(mindspore.Tensor(np.ones(2, np.float32)), name="same")
odd = mindspore.Parameter(mindspore.Tensor(np.full(2, rank.rank + 1e-7, np.float32)), name="odd")
check_equal_parameters({"same": same})
try:
    check_equal_parameters({"same": same, "odd": odd})
except DivergedError as error:
    print("diverged:", error)
broadcast_parameters({"odd": odd}, root=1)
check_equal_parameters({"same": same, "odd": odd})
print("done", odd.asnumpy().round(3).tolist())
"""
DIE_AT_STEP_3 = """
import os, signal
import mindspore, numpy as np
from ms_parallel.mindspore import AllReduceSum, init
rank, total = init(), AllReduceSum()
for step in range(1, 10):
    print("step", step, flush=True)
    if step == 3 and rank.rank == 1:
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    total(mindspore.Tensor(np.ones(2, np.float32))).asnumpy()
"""


def run(tmp_path, *command, **options):
    console = io.StringIO()
    code = launch(command, num_workers=2, log_dir=tmp_path / "logs", console=console, **options)
    return code, console.getvalue()


def pids(folder):
    return [int(path.read_text()) for path in folder.glob("rank-*.pid")]


def wait_until(condition):
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


def test_failed_worker_ends_the_job_with_its_code_and_last_lines(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker_7.log").write_text("of an earlier job")

    code, shown = run(tmp_path, sys.executable, "-c", FAIL_LATE, str(tmp_path / "begun"))

    assert code == 1
    assert "rank 0 begins" in shown  # rank 0 is shown live
    assert "rank 1 ended with code 1; its last lines:\n  | rank 1 begins\n  | the reason why\n" in shown
    assert not any(status(pid).is_running for pid in pids(tmp_path / "logs"))
    assert not (tmp_path / "logs" / "worker_7.log").exists()


def test_workers_that_never_join_one_job_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["ms_parallel.launch"], "_SCHEDULER_SECONDS", 1.0)

    code, shown = run(tmp_path, "echo", "trained alone")

    assert code == 1
    assert "never joined one job" in shown


@pytest.mark.parametrize("poll_seconds", [0.05, 3.0])  # the workers begin between two looks
@pytest.mark.slow
def test_first_signal_lets_workers_save_and_end(tmp_path, poll_seconds):
    launcher = f"import sys, ms_parallel; sys.modules['ms_parallel.launch']._POLL_SECONDS = {poll_seconds}; {LAUNCH}"
    command = [sys.executable, "-c", launcher, str(tmp_path), sys.executable, "-c", SAVE_ON_SIGNAL]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: all("ready" in read(tmp_path / f"worker_{rank}.log") for rank in (0, 1)))
        process.send_signal(signal.SIGTERM)
        shown = process.stdout.read()

    assert process.returncode == 0
    assert "saved" in shown
    assert "saved" in read(tmp_path / "worker_1.log")
    assert not any(status(pid).is_running for pid in pids(tmp_path))


def test_no_worker_outlives_a_killed_launcher(tmp_path):
    command = [sys.executable, "-c", LAUNCH, str(tmp_path), sys.executable, "-c", SAVE_ON_SIGNAL]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: len(pids(tmp_path)) == 2 and "ready" in read(tmp_path / "worker_1.log"))
        workers = pids(tmp_path)
        process.kill()

    wait_until(lambda: not any(status(pid).is_running for pid in workers))


def read(path):
    return path.read_text() if path.exists() else ""


def test_busy_port_is_named_at_once(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        with pytest.raises(LaunchError, match=f"port {port} is in use"):
            run(tmp_path, "true", port=port)


@pytest.mark.parametrize(
    ("command", "num_workers", "message"),
    [([], 2, "no command"), (["no-such-program"], 2, "no-such-program: no such program"), (["true"], 0, "at least 1")],
)
def test_impossible_jobs_are_refused_before_anything_starts(tmp_path, command, num_workers, message):
    with pytest.raises(LaunchError, match=message):
        launch(command, num_workers=num_workers, log_dir=tmp_path / "logs")

    assert not (tmp_path / "logs").exists()


def test_status_tells_how_a_process_ended():
    process = subprocess.Popen(["sleep", "60"])
    assert status(process.pid).is_running

    process.kill()
    wait_until(lambda: not status(process.pid).is_running)
    assert status(process.pid).exit_code == 128 + signal.SIGKILL
    process.wait()
    assert status(process.pid).exit_code is None
    assert status(os.getpid()).is_running


@pytest.mark.msrun
@pytest.mark.slow
def test_two_ranks_sum_compare_and_share_their_parameters(tmp_path):
    (tmp_path / "sums.py").write_text(SUMS)  # graph mode needs the source in a file

    code, shown = run(tmp_path, sys.executable, tmp_path / "sums.py")

    assert code == 0, shown
    for text in (shown, read(tmp_path / "logs" / "worker_1.log")):
        assert "before init: a world of 2 ranks was not joined" in text
        assert "loss 72.0 gradient [10.0, 12.0, 14.0]" in text  # 2 * (0+1+2 + 10+11+12); x of rank 0 + x of rank 1
        assert "diverged: 1 of 2 parameters differ: odd (ranks 1 differ from rank 0)" in text
        assert "done [1.0, 1.0]" in text


@pytest.mark.msrun
@pytest.mark.slow
def test_rank_that_dies_at_step_3_ends_the_job_while_the_other_waits_for_it(tmp_path):
    code, shown = run(tmp_path, sys.executable, "-c", DIE_AT_STEP_3)

    assert code == 128 + signal.SIGKILL
    assert "rank 1 ended with code 137 (SIGKILL); its last lines:" in shown
    assert shown.count("  | about to die\n") == 1
    assert "step 3" in shown
    assert "step 4" not in shown


def test_options_of_the_command_that_begin_like_msruns_reach_the_command(tmp_path):
    options = ["--worker", "--log", "x y", "--master_port=1", "--join", "-h", "--"]

    code, shown = run(tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:]); sys.exit(3)", *options)

    assert code == 3
    assert str(options) in shown
