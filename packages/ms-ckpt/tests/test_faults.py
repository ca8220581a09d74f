"""Real kills, real full disks, real refusals: the last checkpoint is always there."""

import errno
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from ms_ckpt import CheckpointConfig, CheckpointStore

# Forks a process that saves step after step, kills it at a random moment and looks at what it left; again and again.
KILL_AT_RANDOM = """
import itertools, os, random, signal, sys, time
import numpy as np
from ms_ckpt import CheckpointConfig, CheckpointStore
root, kills = sys.argv[1], int(sys.argv[2])
config = CheckpointConfig(keep_last=2)
moments, step = random.Random(7), 0
for _ in range(kills):
    said_from, said_to = os.pipe()
    child = os.fork()
    if child == 0:
        for number in itertools.count(step + 1):
            tensors = {f"t{i}": np.full(50_000, number, np.float32) for i in range(4)}
            CheckpointStore(root, config).save(number, tensors, {"step": number})
            os.write(said_to, b"%d " % number)
    os.close(said_to)
    said = os.read(said_from, 1000)
    time.sleep(moments.uniform(0, 0.04))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while data := os.read(said_from, 1000):
        said += data
    os.close(said_from)
    said = int(said.split()[-1])
    loaded = CheckpointStore(root).load()
    assert loaded.step in (said, said + 1), (loaded.step, said)  # what was said to be safe, or the next, whole as well
    assert loaded.values == {"step": loaded.step}
    assert all((tensor == loaded.step).all() for tensor in loaded.tensors.values())
    step = loaded.step
CheckpointStore(root, config).save(step + 1, {}, {})
assert sorted(os.listdir(root)) == [f"step-{step:08d}", f"step-{step + 1:08d}"], os.listdir(root)
print(step)
"""


def run(script, *arguments, **options):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def filled(tmp_path):
    root = tmp_path / "root"
    CheckpointStore(root).save(1, {"a": np.arange(5)}, {"step": 1})
    return root


@pytest.mark.slow
def test_200_kills_at_random_moments_leave_the_last_save_loadable(tmp_path):
    result = run(KILL_AT_RANDOM, tmp_path, 200)

    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 200


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


def test_disk_that_is_full_at_any_fill_level_keeps_the_old_checkpoint(tmp_path):
    script = """
import errno, os, sys
import numpy as np
from ms_ckpt import CheckpointConfig, CheckpointStore, SaveError
root = sys.argv[1] + "/root"
store = CheckpointStore(root, CheckpointConfig(keep_last=1))
old = {"a": np.arange(1000)}
store.save(1, old, {"step": 1})
refused = done = 0
for pages in range(60):
    with open(sys.argv[1] + "/ballast", "wb") as ballast:
        space = os.statvfs(sys.argv[1])
        ballast.write(bytes(max(0, space.f_bavail * space.f_bsize - pages * 4096)))
    try:
        store.save(2 + pages, {"a": np.arange(10_000), "b": np.ones(3)}, {"step": 2 + pages})
        done += 1
    except SaveError as error:
        assert os.strerror(errno.ENOSPC) in str(error), error
        refused += 1
        assert store.load().step == 1
    os.unlink(sys.argv[1] + "/ballast")
    assert len(os.listdir(root)) == 1, os.listdir(root)
    loaded = store.load()
    assert loaded.values == {"step": loaded.step}
    store.save(1, old, {"step": 1}, replace=True) if loaded.step == 1 else None
    if loaded.step != 1:
        break
print(refused, done)
"""
    mount = 'mount -t tmpfs -o size=1m none "$1"'
    inside = ["unshare", "-r", "-m", "sh", "-c", f'{mount} && exec "$2" -c "$3" "$1"', "sh", tmp_path]
    try:
        result = subprocess.run([*inside, sys.executable, script], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare command here")
    if "unshare" in result.stderr or "mount:" in result.stderr:
        pytest.skip("no private mounts here")

    assert result.returncode == 0, result.stderr
    refused, done = map(int, result.stdout.split())
    assert (refused > 15, done) == (True, 1)


def test_disk_that_cannot_be_read_is_passed_over_like_damage(filled, monkeypatch, caplog):
    CheckpointStore(filled).save(2, {"a": np.arange(5)}, {"step": 2})
    real, bad = os.preadv, (filled / "step-00000002" / "rank-00000.safetensors").stat().st_ino

    def fail(descriptor, *arguments):
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, *arguments)

    monkeypatch.setattr(os, "preadv", fail)

    assert CheckpointStore(filled).load().step == 1
    assert "rank-00000.safetensors: cannot be read: Input/output error" in caplog.text


def test_clock_that_goes_backwards_changes_neither_order_nor_orphans(filled, monkeypatch):
    """Steps are in order of their numbers; nothing but the age of another host's folder asks the clock."""
    store = CheckpointStore(filled, CheckpointConfig(keep_last=2, keep_every_minutes=10))
    foreign = filled / ".saving-step-00000009-elsewhere-1-00000000"
    foreign.mkdir()
    for step, hour in ((2, 5), (3, 2), (4, 1)):
        folder = store.save(step, {"a": np.arange(step)}, {"step": step})
        os.utime(folder / "COMMIT", (3600 * hour,) * 2)
        os.utime(folder, (3600 * hour,) * 2)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 10 * 24 * 3600)

    store.save(5, {"a": np.arange(5)}, {"step": 5})

    assert foreign.exists()
    assert {3, 4, 5} <= set(store.steps())
    assert store.load().step == 5


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
