"""Tests of SIGTERM and SIGINT, with real processes."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from ms_trainloop.signals import StopSignal


@pytest.mark.slow
def test_a_stopped_then_terminated_then_resumed_run_equals_one_process_to_the_bit(uninterrupted, run_lab, tmp_path):
    stopped = run_lab(tmp_path, "--stop-after", 4)
    killed = run_lab(tmp_path, "--kill-at", 7)
    finished = run_lab(tmp_path)

    assert (stopped.returncode, killed.returncode, finished.returncode) == (0, 143, 0), killed.stderr
    assert "interrupted by a signal after step 7 of 12; state saved" in killed.stderr
    saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("*.json"))
    assert saved == ["00000004.json", "00000007.json", "00000012.json"]
    losses = [json.loads(line) for line in (tmp_path / "losses.jsonl").read_text().splitlines()]
    assert losses == [[n, r.loss_sum, r.learning_rate, r.grad_norm] for n, r in uninterrupted["results"].items()]
    with np.load(tmp_path / "checkpoints" / "00000012.npz") as file:
        for name, tensor in uninterrupted["states"][12][0].items():
            assert file[name].tobytes() == tensor.tobytes(), name


def test_the_first_signal_is_kept_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)

    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.number, stop.exit_code) == (signal.SIGTERM, 143)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL

    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number):
    program = (
        "import os, time\n"
        "from ms_trainloop.signals import StopSignal\n"
        "with StopSignal() as stop:\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    print(stop.exit_code, flush=True)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    time.sleep(60)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)

    assert (done.returncode, done.stdout.strip()) == (-number, str(128 + number))
