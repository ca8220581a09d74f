"""A fault at every call to the kernel that changes a file: what was there before or what was to come is whole."""

import subprocess
import sys

import pytest

# Forks the same action again and again, with a fault at its first, second, ... changing call, until it gets through.
FAULT_AT_EVERY_CALL = """
import errno, os, signal, sys, threading
from pathlib import Path
import numpy as np
from ms_ckpt import *
from ms_ckpt import blockfile, staging
from ms_ckpt.conversion import convert
root, scenario, fault = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
OLD = {"a": np.arange(10.0), "b": np.ones(3, np.int8)}
NEW = {"a": np.arange(10.0) + 1, "big": np.arange(600_000.0)}  # more than one block of the direct writer
store = CheckpointStore(root / "root", CheckpointConfig(keep_last=1))

def save(number):
    store.save(number + 1, NEW, {"step": number + 1})

def replace(number):
    store.save(1, NEW, {"step": 1}, replace=True)

def aside(number):
    with AsyncSaver(store) as saver:
        saver.save(number + 1, NEW, {"step": number + 1})

def ranks(number):
    halves = [{"a": Block(data=NEW["a"][:5], offset=(0,), shape=(10,)), "big": NEW["big"]},
              {"a": Block(data=NEW["a"][5:], offset=(5,), shape=(10,))}]
    errors = []
    def one(rank):
        try:
            two = RankStore(store, rank=rank, world_size=2, wait_seconds=3)
            two.save(number + 1, halves[rank], {"step": number + 1})
        except CkptError as error:
            errors.append(error)
    other = threading.Thread(target=one, args=(1,))
    other.start()
    one(0)
    other.join()
    if errors:
        raise errors[0]

def part(number):
    parts = PartStore(root / "parts", CheckpointConfig(keep_last=1), rank=0, world_size=2)
    parts.save(number + 1, NEW, {"step": number + 1})

def reshard_it(number):
    with store.open(1) as folder:
        reshard(folder, CheckpointStore(root / "other", CheckpointConfig(keep_last=0)),
                split_layout({"a": (10,), "b": (3,)}, (2,), {"*": (0,)}), replace=True)

def prune(number):
    for step in (1, 2, 3):
        if not (root / "root" / f"step-0000000{step}").exists():
            CheckpointStore(root / "root", CheckpointConfig(keep_last=0)).save(step, OLD, {"step": step})
    arm()
    store.prune()

def to_file(number):
    convert(root / "root", root / f"m.{scenario}", to={"ckpt": "mindspore"}.get(scenario, scenario), replace=True)

ACTIONS = {"save": save, "replace": replace, "aside": aside, "ranks": ranks, "part": part, "reshard": reshard_it,
           "prune": prune, "ckpt": to_file, "safetensors": to_file, "huggingface": to_file}

def check(number):
    loaded = CheckpointStore(root / "root").load()
    assert loaded.values == {"step": loaded.step}, number
    is_old = loaded.tensors.keys() == OLD.keys()
    for name, array in (OLD if is_old else NEW).items():
        assert (loaded.tensors[name] == array).all(), (number, name)
    if scenario == "prune":
        assert loaded.step == 3
    if scenario == "part" and (root / "parts").exists():
        loaded = PartStore(root / "parts", rank=0, world_size=2).load()
        assert loaded is None or (loaded.tensors["a"] == NEW["a"]).all()
    if scenario == "reshard" and (root / "other").exists():
        loaded = CheckpointStore(root / "other").load()
        assert loaded is None or (loaded.tensors["a"] == OLD["a"]).all()
    target = root / f"m.{scenario}"
    if target.exists():  # a file that stands under its name is whole
        convert(target, root / "back", to="checkpoint", replace=True)
        assert (CheckpointStore(root / "back").load().tensors["a"] == OLD["a"]).all()

calls, chosen, is_armed = 0, 0, False

def arm():
    global is_armed, calls
    is_armed, calls = True, 0

def guard(owner, name, can_be_cut=False):
    real = getattr(owner, name)
    def call(*args, **kwargs):
        global calls
        if not is_armed or (name == "open" and not args[1] & os.O_CREAT):
            return real(*args, **kwargs)
        calls += 1
        if calls != chosen:
            return real(*args, **kwargs)
        if fault == "kill after":
            real(*args, **kwargs)
        if fault == "kill inside" and can_be_cut:
            real(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:])
        if fault.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "short write":
            if not can_be_cut:
                return real(*args, **kwargs)
            return real(args[0], memoryview(args[1])[: max(1, len(args[1]) // 2 - 1)], *args[2:])
        raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)))
    setattr(owner, name, call)

store.save(1, OLD, {"step": 1})
for number in range(1, 2000):
    child = os.fork()
    if child == 0:
        chosen = number
        for name in ("mkdir", "open", "fsync", "ftruncate", "rename", "rmdir", "unlink"):
            guard(os, name)
        for name in ("write", "pwrite"):
            guard(os, name, can_be_cut=True)
        guard(blockfile, "allocate")
        guard(staging, "_exchange")
        if scenario != "prune":
            arm()
        try:
            ACTIONS[scenario](number)
        except (CkptError, OSError):
            os._exit(3)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(5)
        os._exit(0 if calls < number else 4)
    status = os.waitpid(child, 0)[1]
    assert status not in (5 << 8,), number
    check(number)
    if status == 0:
        break
else:
    sys.exit("the action never got through")
left = [str(path) for path in root.rglob("*") if "writing" in path.name or "saving" in path.name]
print(number, left if scenario not in ("ckpt", "safetensors", "huggingface") else [])
"""


def enumerate_faults(tmp_path, scenario, fault):
    """At how many calls the fault struck; all that is left over at the end."""
    command = [sys.executable, "-c", FAULT_AT_EVERY_CALL, str(tmp_path), scenario, fault]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert result.returncode == 0, result.stderr
    count, left = result.stdout.split(maxsplit=1)
    assert left.strip() == "[]"
    return int(count) - 1


@pytest.mark.parametrize("fault", ["kill before", "kill after", "kill inside", "EIO", "ENOSPC", "short write"])
@pytest.mark.parametrize("scenario", ["save", "replace"])
def test_save_leaves_the_old_or_the_new_checkpoint_whole(tmp_path, scenario, fault):
    assert enumerate_faults(tmp_path, scenario, fault) > 25


@pytest.mark.parametrize("fault", ["kill after", "EIO"])
@pytest.mark.parametrize("scenario", ["aside", "part", "reshard"])
def test_other_ways_to_save_leave_whole_checkpoints_too(tmp_path, scenario, fault):
    assert enumerate_faults(tmp_path, scenario, fault) > 15


@pytest.mark.slow
def test_two_ranks_killed_together_leave_the_old_or_the_new_checkpoint_whole(tmp_path):
    assert enumerate_faults(tmp_path, "ranks", "kill before") > 30


@pytest.mark.parametrize("fault", ["kill before", "kill after", "EIO"])
def test_pruning_never_touches_the_newest(tmp_path, fault):
    assert enumerate_faults(tmp_path, "prune", fault) > 5


@pytest.mark.parametrize("fault", ["kill before", "kill inside", "ENOSPC"])
@pytest.mark.parametrize("scenario", ["ckpt", "safetensors", "huggingface"])
def test_converted_files_appear_whole_or_not_at_all(tmp_path, scenario, fault):
    assert enumerate_faults(tmp_path, scenario, fault) > 3
