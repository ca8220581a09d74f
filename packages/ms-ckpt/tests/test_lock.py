"""One writer at a time under a root, and a lock that cannot go stale."""

import errno
import fcntl
import logging
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from ms_ckpt import CheckpointConfig, CheckpointStore, SaveError
from ms_ckpt.lock import root_lock

HOLD = """
import sys, time
from ms_ckpt import CheckpointStore
with CheckpointStore(sys.argv[1]).publication(int(sys.argv[2])) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""

SAVE_MANY = """
import sys
import numpy as np
from ms_ckpt import CheckpointConfig, CheckpointStore
store = CheckpointStore(sys.argv[1], CheckpointConfig(keep_last=0))
for step in range(int(sys.argv[2]), 40, 2):
    store.save(step, {"t": np.full(1000, step)}, {"writer": int(sys.argv[2])})
"""


@pytest.fixture
def held(tmp_path):
    """A root in which another process is saving step 9."""
    CheckpointStore(tmp_path).save(1, {"a": np.arange(5)}, {})
    command = [sys.executable, "-c", HOLD, str(tmp_path), "9"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        yield tmp_path, process
        process.kill()


def test_second_writer_is_refused_by_name_and_harms_nobody(held):
    root, process = held
    store = CheckpointStore(root, CheckpointConfig(lock_seconds=0))

    with pytest.raises(SaveError, match=rf"another process has been saving here.*:{process.pid}\).*lock_seconds"):
        store.save(2, {}, {})

    assert store.steps() == [1]
    assert len(list(root.glob(".saving-step-00000009-*"))) == 1


def test_readers_need_no_lock(held):
    assert CheckpointStore(held[0]).load().step == 1


def test_killed_holder_frees_the_lock_and_its_folder_is_swept(held):
    root, process = held
    process.send_signal(signal.SIGKILL)
    process.wait()

    CheckpointStore(root, CheckpointConfig(lock_seconds=0)).save(2, {}, {})

    assert sorted(path.name for path in root.iterdir()) == ["step-00000001", "step-00000002"]


def test_pruning_waits_for_the_lock_too_but_a_dry_run_does_not(held):
    store = CheckpointStore(held[0], CheckpointConfig(lock_seconds=0))

    assert store.prune(is_dry_run=True) == []
    with pytest.raises(SaveError, match="another process"):
        store.prune()


def test_writer_gets_its_turn_when_the_other_ends(tmp_path):
    release, is_held = threading.Event(), threading.Event()

    def hold():
        with root_lock(tmp_path, 0):
            is_held.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    is_held.wait(30)
    threading.Timer(0.1, release.set).start()

    CheckpointStore(tmp_path, CheckpointConfig(lock_seconds=30)).save(1, {}, {})

    holder.join()
    assert CheckpointStore(tmp_path).steps() == [1]


def test_two_processes_saving_at_once_lose_nothing(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", SAVE_MANY, str(tmp_path), str(first)]) for first in (0, 1)]
    assert [writer.wait(120) for writer in writers] == [0, 0]

    store = CheckpointStore(tmp_path)
    assert store.steps() == list(range(40))
    for step in store.steps():
        loaded = store.load(step)
        assert loaded.values == {"writer": step % 2}
        assert (loaded.tensors["t"] == step).all()
    assert len(list(tmp_path.iterdir())) == 40


def test_lock_leaves_no_file_behind(tmp_path):
    with root_lock(tmp_path, 0):
        assert list(tmp_path.iterdir()) == []


def test_file_system_without_locks_saves_with_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)

    with caplog.at_level(logging.WARNING):
        CheckpointStore(tmp_path).save(1, {}, {})

    assert "this file system has no locks (No locks available); saving without one" in caplog.text
    assert CheckpointStore(tmp_path).steps() == [1]


def test_waiting_does_not_follow_a_wall_clock_that_goes_backwards(held, monkeypatch):
    import time

    wall = [1e9]

    def backwards():
        wall[0] -= 3600
        return wall[0]

    monkeypatch.setattr(time, "time", backwards)

    with pytest.raises(SaveError, match="another process"):
        CheckpointStore(held[0], CheckpointConfig(lock_seconds=0)).save(2, {}, {})
