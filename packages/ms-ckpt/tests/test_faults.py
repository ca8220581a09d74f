"""Real kills, real full disks, real refusals: the last checkpoint is always there."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ms_ckpt import CheckpointConfig, CheckpointStore

# Saves step after step until it is killed; says what is safe after each.
SAVE_FOREVER = """
import itertools, sys
import numpy as np
from ms_ckpt import CheckpointConfig, CheckpointStore
store = CheckpointStore(sys.argv[1], CheckpointConfig(keep_last=2))
for step in itertools.count(int(sys.argv[2])):
    store.save(step, {f"t{i}": np.full(50_000, step, np.float32) for i in range(4)}, {"step": step})
    print(step, flush=True)
"""

# Forks one save for every call to the kernel that it makes, and lets exactly that call kill the process or fail.
FAIL_AT_EVERY_CALL = """
import errno, os, signal, sys
import numpy as np
from ms_ckpt import CheckpointConfig, CheckpointStore, CkptError
root, mode = sys.argv[1:3]
store = CheckpointStore(root, CheckpointConfig(keep_last=1))
tensors = {"a": np.arange(10.0), "b": np.ones(3, np.int8)}
store.save(1, tensors, {"step": 1})
for number in range(1, 1000):
    child = os.fork()
    if child == 0:
        calls = 0
        def guard(name):
            real = getattr(os, name)
            def call(*args, **kwargs):
                global calls
                calls += 1
                if calls == number:
                    if mode == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return real(*args, **kwargs)
            setattr(os, name, call)
        for name in ("mkdir", "open", "write", "fsync", "rename", "rmdir", "unlink"):
            guard(name)
        try:
            store.save(number + 1, tensors, {"step": number + 1})
        except (CkptError, OSError):
            os._exit(3)
        os._exit(0 if calls < number else 4)
    status = os.waitpid(child, 0)[1]
    loaded = CheckpointStore(root).load()
    assert loaded.values == {"step": loaded.step}, number
    assert (loaded.tensors["a"] == tensors["a"]).all()
    if status == 0:
        assert loaded.step == number + 1
        print(number)
        break
else:
    sys.exit("the save never ended")
assert [name for name in os.listdir(root)] == [f"step-{loaded.step:08d}"], os.listdir(root)
"""


def run(script, *arguments, **options):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def filled(tmp_path):
    root = tmp_path / "root"
    CheckpointStore(root).save(1, {"a": np.arange(5)}, {"step": 1})
    return root


def test_kill_at_random_moments_leaves_the_last_save_loadable(tmp_path):
    moments = random.Random(7)
    step = 0
    for _ in range(12):
        command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path), str(step + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            said = int(process.stdout.readline())
            time.sleep(moments.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
            said = max([said, *map(int, process.stdout.read().split())])

        loaded = CheckpointStore(tmp_path).load()

        assert loaded.step in (said, said + 1)  # the one that was said to be safe, or the next, complete as well
        assert loaded.values == {"step": loaded.step}
        assert all((tensor == loaded.step).all() for tensor in loaded.tensors.values())
        step = loaded.step

    CheckpointStore(tmp_path, CheckpointConfig(keep_last=2)).save(step + 1, {}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}", f"step-{step + 1:08d}"]


def test_kill_at_every_call_to_the_kernel_leaves_a_whole_checkpoint(tmp_path):
    result = run(FAIL_AT_EVERY_CALL, tmp_path, "kill")

    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 20  # it did enumerate the calls


def test_input_output_error_at_every_call_leaves_a_whole_checkpoint(tmp_path):
    result = run(FAIL_AT_EVERY_CALL, tmp_path, "error")

    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 20


SAVE_TOO_MUCH = """
import signal, sys
import numpy as np
from ms_ckpt import CheckpointStore, SaveError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = CheckpointStore(sys.argv[1])
store.save(1, {"a": np.arange(5)}, {"step": 1})
try:
    store.save(2, {"a": np.zeros(1_000_000)}, {})
except SaveError as error:
    print(error)
assert store.load().step == 1
assert [path.name for path in store.root.iterdir()] == ["step-00000001"]
"""


def test_file_that_may_not_grow_is_an_error_and_keeps_the_old_checkpoint(tmp_path):
    result = run(SAVE_TOO_MUCH, tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))

    assert result.returncode == 0, result.stderr
    assert f"step 2 was not saved: [Errno {errno.EFBIG}]" in result.stdout
    assert "earlier checkpoints are untouched" in result.stdout


def test_full_disk_is_an_error_and_keeps_the_old_checkpoint(tmp_path):
    mount = 'mount -t tmpfs -o size=1m none "$1"'
    inside = ["unshare", "-r", "-m", "sh", "-c", f'{mount} && exec "$2" -c "$3" "$1"', "sh", tmp_path]
    try:
        result = subprocess.run([*inside, sys.executable, SAVE_TOO_MUCH], capture_output=True, text=True, check=False)
        is_refused = "unshare" in result.stderr or "mount" in result.stderr
    except FileNotFoundError:
        is_refused = True
    if is_refused:  # no private mounts here: the limit of the test above is as near as one gets
        limit = (65536, 65536)
        result = run(SAVE_TOO_MUCH, tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))

    assert result.returncode == 0, result.stderr
    assert f"[Errno {errno.EFBIG if is_refused else errno.ENOSPC}]" in result.stdout


def test_read_only_folder_is_an_error_and_keeps_the_old_checkpoint(filled):
    script = """
import os, sys
import numpy as np
from ms_ckpt import CheckpointStore, SaveError
if os.getuid() == 0:
    os.setuid(65534)
try:
    CheckpointStore("root").save(2, {"a": np.zeros(3)}, {})
except SaveError as error:
    print(error)
"""
    filled.parent.chmod(0o755)
    filled.chmod(0o555)

    result = run(script, cwd=filled.parent)

    filled.chmod(0o755)
    assert "step 2 was not saved: [Errno 13] Permission denied" in result.stdout, result.stderr
    assert CheckpointStore(filled).load().step == 1


def test_orphan_of_a_dead_process_is_swept_and_a_save_under_way_is_not(filled):
    script = """
import sys, time
from pathlib import Path
from ms_ckpt.staging import staging_folder
with staging_folder(Path(sys.argv[1]), 9) as path:
    (path / "index.json").write_text("half")
    print(path, flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", script, str(filled)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        path = Path(process.stdout.readline().strip())

        CheckpointStore(filled).save(2, {}, {})
        assert path.exists()
        process.kill()
        process.wait()
        CheckpointStore(filled).save(3, {}, {})

    assert not path.exists()
    assert CheckpointStore(filled).steps() == [1, 2, 3]


def test_another_hosts_folder_is_swept_only_after_a_day(filled):
    fresh = filled / ".saving-step-00000009-elsewhere-1-00000000"
    old = filled / ".saving-step-00000009-elsewhere-2-00000000"
    for path in (fresh, old):
        path.mkdir()
    os.utime(old, (time.time() - 100_000,) * 2)

    CheckpointStore(filled).save(2, {}, {})

    assert fresh.exists()
    assert not old.exists()
