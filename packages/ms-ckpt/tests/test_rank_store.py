"""Real processes save one checkpoint through nothing but a folder, and read back the parts they need."""

import json
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from ms_ckpt import (
    AsyncSaver,
    Block,
    CheckpointConfig,
    CheckpointStore,
    CkptError,
    MismatchError,
    RankStore,
    SaveError,
    StepExistsError,
    ValuesError,
    split_layout,
)

SHAPES = {
    "model.a.weight": (8, 6),
    "model.b.weight": (7, 5),  # uneven whichever way it is split
    "optimizer.exp_avg.a.weight": (8, 6),
    "optimizer.exp_avg.b.weight": (7, 5),
    "optimizer.step": (),
    "model.tiny.bias": (1,),  # shorter than the ranks that split it
    "model.empty": (0, 3),
}
SPLITS = {  # mesh and split of matrices, biases
    "2x2": ((2, 2), {"*.weight": (0, 1), "*.bias": (0, None)}),
    "4x1": ((4,), {"*.weight": (0,), "*.bias": (0,)}),
    "1x4": ((4,), {"*.weight": (1,), "*.bias": (None,)}),
    "3x1": ((3,), {"*.weight": (0,)}),
    "2 of 3": ((3, 2), {"*.weight": (0, 0)}),
    "2": ((2,), {"*.weight": (0,)}),
    "1": ((1,), {}),
}

# One rank of a job: saves its blocks of numbers that every process can compute.
RANK = """
import json, sys
import numpy as np
from ms_ckpt import CheckpointStore, CkptError, RankStore, split_layout
root, rank, world_size, step, wait, mesh, splits, shapes, kind = json.loads(sys.argv[1])
layout = split_layout(shapes, mesh, splits)
def whole(name):
    numbers = np.arange(np.prod(shapes[name]), dtype=np.float32) + 100 * len(name) + step
    return numbers.reshape(shapes[name])
blocks = {}
for name, shape in shapes.items():
    ranges = layout.ranges(name, shape, rank)
    blocks[name] = layout.block(name, whole(name)[(*(slice(*r) for r in ranges), ...)], rank)
if kind == "list" and rank == 1:
    blocks["model.a.weight"] = [1.0]
store = RankStore(CheckpointStore(root), rank=rank, world_size=world_size, wait_seconds=wait)
print("ready", flush=True)
sys.stdin.readline()
try:
    print(store.save(step, blocks, {"step": step, "rank": rank}).name)
except CkptError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def whole(name, step=1):
    numbers = np.arange(np.prod(SHAPES[name]), dtype=np.float32) + 100 * len(name) + step
    return numbers.reshape(SHAPES[name])


class Job:
    """The processes of a job; `go` lets the named ranks save."""

    def __init__(self, root, split="2x2", step=1, wait=30, kind="", world_size=None):
        mesh, splits = SPLITS[split]
        self.world_size = world_size or int(np.prod(mesh))
        self.processes = []
        for rank in range(self.world_size):
            arguments = json.dumps([str(root), rank, self.world_size, step, wait, mesh, splits, SHAPES, kind])
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )

    def go(self, *ranks):
        for rank in ranks or range(self.world_size):
            self.processes[rank].stdout.readline()
            self.processes[rank].stdin.write("\n")
            self.processes[rank].stdin.flush()

    def end(self, *ranks):
        """Exit code and last line of each of the ranks."""
        found = []
        for rank in ranks or range(self.world_size):
            out, err = self.processes[rank].communicate(timeout=120)
            found.append((self.processes[rank].returncode, (out + err).strip().splitlines()[-1]))
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()


def run_job(root, **options):
    with Job(root, **options) as job:
        job.go()
        return job.end()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint that four processes saved as 2 x 2."""
    root = tmp_path_factory.mktemp("root")
    assert run_job(root) == [(0, "step-00000001")] * 4
    return CheckpointStore(root)


def test_four_processes_save_one_whole_checkpoint(saved):
    loaded = saved.load()

    assert loaded.values == {"step": 1, "rank": 0}
    assert loaded.tensors.keys() == SHAPES.keys()
    for name, tensor in loaded.tensors.items():
        np.testing.assert_array_equal(tensor, whole(name))
    assert sorted(path.name for path in (saved.root / "step-00000001").iterdir()) == [
        "COMMIT", "index.json", *[f"rank-0000{rank}.safetensors" for rank in range(4)], "state.json"
    ]  # fmt: skip
    saved.verify(1)


def test_what_several_ranks_hold_is_written_once(saved):
    with saved.open(1) as folder:
        chunks = {name: len(tensor.chunks) for name, tensor in folder.index.tensors.items()}

    assert chunks == {
        "model.a.weight": 4, "model.b.weight": 4, "optimizer.exp_avg.a.weight": 4, "optimizer.exp_avg.b.weight": 4,
        "optimizer.step": 1, "model.tiny.bias": 1, "model.empty": 1,
    }  # fmt: skip


@pytest.mark.parametrize("split", SPLITS)
def test_any_ranks_read_back_their_parts_to_the_last_bit(saved, split):
    layout = split_layout(SHAPES, *SPLITS[split])
    for rank in range(layout.world_size):
        slices = layout.slices(SHAPES, rank)
        store = RankStore(saved, rank=rank, world_size=layout.world_size)

        loaded = store.load(1, slices=slices)

        for name, cut in slices.items():
            np.testing.assert_array_equal(
                loaded.tensors[name], whole(name)[(*cut, ...)], err_msg=f"{name} of rank {rank}"
            )


def test_a_wrong_layout_would_be_noticed(saved):
    layout = split_layout(SHAPES, *SPLITS["4x1"])

    loaded = saved.load(slices=layout.slices(SHAPES, 1))

    assert not np.array_equal(
        loaded.tensors["model.a.weight"], whole("model.a.weight")[layout.slices(SHAPES, 2)["model.a.weight"]]
    )


def test_missing_rank_is_named_and_nothing_is_published(tmp_path):
    run_job(tmp_path, split="2", step=1)
    with Job(tmp_path, split="4x1", step=2, wait=3) as job:
        job.go(0, 2)

        (code, error), (other_code, other) = job.end(0, 2)

    assert code == other_code == 1
    assert "SaveError: step 2 was not saved: no part of rank 1, 3 (of 4) within 3 s" in error
    assert "rank 0 did not commit this step" in other
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_rank_that_fails_is_named_with_its_reason_at_once(tmp_path):
    with Job(tmp_path, split="2", wait=60, kind="list") as job:
        job.go()

        (code, error), (other_code, other) = job.end()

    assert code == other_code == 1
    assert "step 1 was not saved: rank 1 could not: ValuesError: model.a.weight: expected a numpy array" in error
    assert other.startswith("ValuesError: model.a.weight: expected a numpy array")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("victim", [0, 1])
def test_killed_rank_leaves_the_last_checkpoint_and_the_next_job_saves(tmp_path, victim):
    run_job(tmp_path, split="2", step=1)
    with Job(tmp_path, split="2", step=2, wait=2) as job:
        job.go(victim)
        time.sleep(0.3)
        job.processes[victim].send_signal(signal.SIGKILL)
        job.processes[victim].wait()
        job.go(1 - victim)
        code, error = job.end(1 - victim)[0]

    assert code == 1
    assert ("no part of rank 1" if victim else "rank 0 (of 2, run '') has not begun to save it") in error
    assert CheckpointStore(tmp_path).steps() == [1]

    assert run_job(tmp_path, split="2", step=2) == [(0, "step-00000002")] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_folder_of_a_killed_rank_0_is_joined_by_nobody(tmp_path):
    """Its announcement stands there, but its beat stands still: on a clock-free disk that is what tells it apart."""
    with Job(tmp_path, split="2", wait=60) as job:
        job.go(0)
        while not list(tmp_path.glob(".saving-*/gather.json")):
            time.sleep(0.02)
        job.processes[0].send_signal(signal.SIGKILL)
        job.processes[0].wait()
    store = RankStore(CheckpointStore(tmp_path), rank=1, world_size=2, wait_seconds=0.5)

    with pytest.raises(SaveError, match=r"rank 0 .* has not begun to save it"):
        store.save(1, {"x": np.zeros(1)}, {})


def in_threads(stores, *arguments, **options):
    """`save` of all stores at once; each one's result or error."""
    found = {}

    def save(store):
        try:
            found[store.rank] = store.save(*arguments, **options)
        except CkptError as error:
            found[store.rank] = error

    threads = [threading.Thread(target=save, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[store.rank] for store in stores]


def ranks_of(root, world_size=2, **options):
    settings = {"wait_seconds": 5, **options}
    return [
        RankStore(CheckpointStore(root), rank=rank, world_size=world_size, **settings) for rank in range(world_size)
    ]


def test_ranks_of_another_launch_or_world_size_do_not_meet(tmp_path):
    first, _ = ranks_of(tmp_path, run="a", wait_seconds=2)
    _, second = ranks_of(tmp_path, run="b", wait_seconds=2)

    errors = in_threads([first, second], 1, {"x": np.zeros(1)}, {})

    assert "no part of rank 1" in str(errors[0])
    assert "seen were step 1 of 2 ranks, run 'a'" in str(errors[1])


def test_blocks_that_two_ranks_wrote_or_nobody_are_refused_by_name(tmp_path):
    twice, other = in_threads(ranks_of(tmp_path), 1, {"x": np.zeros(4)}, {})

    assert isinstance(twice, ValuesError)
    assert "tensor x: its chunks overlap of [4]: rank-00000.safetensors has [4] at [0], rank-00001" in str(twice)
    assert "replica=1" in str(twice)
    assert isinstance(other, SaveError)

    gap, _ = in_threads(ranks_of(tmp_path), 1, {"x": Block(data=np.zeros(2), offset=(0,), shape=(4,), replica=1)}, {})
    assert not isinstance(gap, Exception)  # a tensor of which everybody has only a copy does not exist
    assert CheckpointStore(tmp_path).load().tensors == {}
    assert CheckpointStore(tmp_path).steps() == [1]


def test_step_that_exists_is_refused_on_every_rank_unless_replaced(tmp_path):
    def save(**options):
        content = {"x": Block(data=np.zeros(2), offset=(0,), shape=(2,), replica=0)}
        first, second = ranks_of(tmp_path)
        threads = threading.Thread(target=lambda: results.append(try_to(lambda: second.save(1, {}, {}, **options))))
        results = []
        threads.start()
        results.append(try_to(lambda: first.save(1, content, {}, **options)))
        threads.join()
        return results

    def try_to(action):
        try:
            return action()
        except StepExistsError as error:
            return error

    assert save() == [tmp_path / "step-00000001"] * 2
    assert all(isinstance(result, StepExistsError) for result in save())
    assert save(replace=True) == [tmp_path / "step-00000001"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_ranks_save_aside_too(tmp_path):
    layout = split_layout({"x": (5,)}, (2,), {"x": (0,)})
    data = np.arange(5.0)
    cuts = [data[:2], data[2:]]
    savers = [AsyncSaver(store) for store in ranks_of(tmp_path, wait_seconds=30)]
    for step in (1, 2):
        for rank, saver in enumerate(savers):
            saver.save(step, {"x": layout.block("x", cuts[rank], rank)}, {})
        data += 1
    for saver in savers:
        saver.close()

    assert CheckpointStore(tmp_path).load(1).tensors["x"].tolist() == [0, 1, 2, 3, 4]
    assert CheckpointStore(tmp_path).load(2).tensors["x"].tolist() == [1, 2, 3, 4, 5]


def test_retention_follows_rank_0(tmp_path):
    for step in range(4):
        stores = [
            RankStore(CheckpointStore(tmp_path, CheckpointConfig(keep_last=2)), rank=rank, world_size=2)
            for rank in (0, 1)
        ]
        content = {"x": Block(data=np.zeros(2), offset=(0,), shape=(2,))}
        thread = threading.Thread(target=stores[1].save, args=(step, {}, {}))
        thread.start()
        stores[0].save(step, content, {})
        thread.join()

    assert CheckpointStore(tmp_path).steps() == [2, 3]


def test_slices_of_tensors_that_are_not_there_are_named(saved):
    with pytest.raises(MismatchError, match="slices of tensors that it does not hold: other"):
        saved.load(slices={"other": (slice(None),)})


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0), (True, 2)])
def test_impossible_ranks_are_refused(tmp_path, rank, world_size):
    with pytest.raises(ValuesError, match="expected 0 <= rank < world_size"):
        RankStore(CheckpointStore(tmp_path), rank=rank, world_size=world_size)
