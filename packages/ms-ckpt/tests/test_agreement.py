"""All ranks load one step, whatever only some of them can see."""

import threading

import numpy as np
import pytest
from ms_ckpt import Block, CheckpointStore, InvalidCheckpointError, RankStore, ValuesError


def ranks_of(root, world_size):
    return [RankStore(CheckpointStore(root), rank=rank, world_size=world_size) for rank in range(world_size)]


class Meeting:
    """An all-reduce of the smallest number among threads."""

    def __init__(self, size):
        self._barrier = threading.Barrier(size)
        self._given = []

    def smallest(self, number):
        self._given.append(number)
        self._barrier.wait(30)
        found = min(self._given)
        if self._barrier.wait(30) == 0:
            self._given.clear()
        self._barrier.wait(30)
        return found


def load_together(root, slices):
    meeting, found = Meeting(len(slices)), {}

    def load(store):
        try:
            found[store.rank] = store.load(agree=meeting.smallest, slices=slices[store.rank])
        except InvalidCheckpointError as error:
            found[store.rank] = error

    threads = [threading.Thread(target=load, args=(store,)) for store in ranks_of(root, len(slices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(len(slices))]


def test_damage_that_one_rank_sees_makes_all_load_the_same_older_step(tmp_path):
    halves = [{"x": (slice(0, 40_000),)}, {"x": (slice(40_000, 80_000),)}]
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3):
        blocks = [{"x": [Block(data=np.full(40_000, step), offset=(at,), shape=(80_000,))]} for at in (0, 40_000)]
        store.save_ranks(step, blocks, {})
    for step, rank in ((3, 1), (2, 0)):
        path = tmp_path / f"step-0000000{step}" / f"rank-0000{rank}.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")

    with_one_left = load_together(tmp_path, halves)
    path = tmp_path / "step-00000001" / "state.json"
    path.write_text("{}")
    with_none_left = load_together(tmp_path, halves)

    assert [loaded.step for loaded in with_one_left] == [1, 1]
    assert all(isinstance(error, InvalidCheckpointError) for error in with_none_left)
    assert store.load(3, slices=halves[0]).step == 3  # each rank for itself would have parted: 3 here,
    assert store.load(2, slices=halves[1]).step == 2  # 2 there


def test_empty_root_is_none_for_all_and_agreement_is_demanded(tmp_path):
    assert load_together(tmp_path, [{}, {}]) == [None, None]
    with pytest.raises(ValuesError, match="must be agreed"):
        ranks_of(tmp_path, 2)[0].load()
