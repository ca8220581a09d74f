"""Ranks without a shared disk: parts that are whole in themselves, and their merge."""

import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from ms_ckpt import (
    Block,
    CheckpointConfig,
    CheckpointStore,
    InvalidCheckpointError,
    MismatchError,
    PartStore,
    ValuesError,
    merge_parts,
    open_folder,
    split_layout,
)
from ms_ckpt.cli import main

WHOLE = {
    "model.w": np.arange(35, dtype=np.float32).reshape(7, 5),
    "optimizer.exp_avg.w": np.arange(35, dtype=np.float64).reshape(7, 5) / 3,
    "optimizer.step": np.array(9),
}
LAYOUT = split_layout({name: array.shape for name, array in WHOLE.items()}, (2, 2), {"*.w": (0, None)})


def save_parts(tmp_path, step=1, values=None, change=None):
    """The parts of four ranks (two halves, two copies each), each on a disk of its own."""
    folders = []
    for rank in range(4):
        store = PartStore(tmp_path / f"node{rank}", CheckpointConfig(keep_last=0), rank=rank, world_size=4)
        blocks = {}
        for name, array in WHOLE.items():
            cut = LAYOUT.slices({name: array.shape}, rank)[name]
            data = array[(*cut, ...)].copy()
            if change == (rank, name):
                data[...] += 1
            blocks[name] = LAYOUT.block(name, data, rank)
        given = values(rank) if values else {"step": step}
        folders.append(store.save(step, blocks, given))
    return folders


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_part_is_verified_and_loaded_by_itself(tmp_path):
    save_parts(tmp_path)
    store = PartStore(tmp_path / "node3", rank=3, world_size=4)

    loaded = store.load(expected={"model.w": ("F32", (4, 5)), "optimizer.exp_avg.w": ("F64", (4, 5)),
                                  "optimizer.step": ("I64", ())})  # fmt: skip

    np.testing.assert_array_equal(loaded.tensors["model.w"], WHOLE["model.w"][3:])
    np.testing.assert_array_equal(loaded.tensors["optimizer.exp_avg.w"], WHOLE["optimizer.exp_avg.w"][3:])
    assert loaded.tensors["optimizer.step"] == 9
    store.verify(1)
    assert store.steps() == [1]


def test_part_keeps_its_own_retention_and_falls_back_like_a_checkpoint(tmp_path):
    store = PartStore(tmp_path, CheckpointConfig(keep_last=2), rank=0, world_size=2)
    for step in (1, 2, 3):
        store.save(step, {"w": Block(data=np.full(3, step), offset=(0,), shape=(6,))}, {})
    path = store.root / "step-00000003" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")

    assert store.load().step == 2
    assert store.load_agreed(lambda mine: mine).step == 2
    assert store.load_agreed(lambda mine: min(mine, 2)).tensors["w"].tolist() == [2, 2, 2]


def test_part_is_no_checkpoint_and_a_checkpoint_no_part(tmp_path):
    part = save_parts(tmp_path)[1]
    CheckpointStore(tmp_path / "whole").save(1, WHOLE, {})
    (tmp_path / "node1" / "rank-00001-of-00004").rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "whole", tmp_path / "node1" / "rank-00001-of-00004")

    with pytest.raises(InvalidCheckpointError, match=r"only rank 1's part of 4; .*ms-ckpt merge"):
        CheckpointStore(tmp_path / "moved").load(1)
    with pytest.raises(InvalidCheckpointError, match="a whole checkpoint, expected a rank's part"):
        PartStore(tmp_path / "node1", rank=1, world_size=4).load(1)
    assert part.name == "step-00000001"


def test_what_another_rank_holds_is_refused_by_name(tmp_path):
    part = save_parts(tmp_path)[3]

    with open_folder(part) as folder:
        assert folder.read_slice("model.w", (slice(4, 6), slice(1, 3))).tolist() == [[21, 22], [26, 27]]
        with pytest.raises(
            ValuesError, match=r"model\.w: \[2, 5\] at \[2, 0\] .* rank 3's part, .* \[4, 5\] at \[3, 0\]"
        ):
            folder.read_slice("model.w", (slice(2, 4), slice(None)))


def test_blocks_of_a_part_must_fill_one_block(tmp_path):
    store = PartStore(tmp_path, rank=0, world_size=2)
    corners = [Block(data=np.zeros((1, 1)), offset=(at, at), shape=(2, 2)) for at in (0, 1)]

    with pytest.raises(InvalidCheckpointError, match="tensor w: its chunks leave a gap"):
        store.save(1, {"w": corners}, {})
    assert list(store.root.iterdir()) == []

    columns = [Block(data=np.full((2, 1), at), offset=(0, at), shape=(2, 3)) for at in (0, 1)]
    store.save(1, {"w": columns}, {})
    assert store.load().tensors["w"].tolist() == [[0, 1], [0, 1]]


def test_merge_makes_one_checkpoint_with_each_copy_once(tmp_path):
    parts = save_parts(tmp_path)

    folder = merge_parts(CheckpointStore(tmp_path / "merged"), parts)

    loaded = CheckpointStore(tmp_path / "merged").load()
    assert loaded.values == {"step": 1}
    for name, array in WHOLE.items():
        np.testing.assert_array_equal(loaded.tensors[name], array)
    with open_folder(folder) as opened:
        assert {name: len(tensor.chunks) for name, tensor in opened.index.tensors.items()} == {
            "model.w": 2, "optimizer.exp_avg.w": 2, "optimizer.step": 1
        }  # fmt: skip


def test_merge_names_missing_and_repeated_ranks_and_other_steps(tmp_path):
    parts = save_parts(tmp_path)
    later = save_parts(tmp_path, step=2)
    store = CheckpointStore(tmp_path / "merged")

    with pytest.raises(MismatchError, match=r"no part of rank 1, 3 \(of 4\)"):
        merge_parts(store, [parts[0], parts[2]])
    with pytest.raises(MismatchError, match="rank 1 again, as in"):
        merge_parts(store, [*parts, parts[1]])
    with pytest.raises(MismatchError, match="step 2 of a job of 4 ranks"):
        merge_parts(store, [*parts[:3], later[3]])
    with pytest.raises(MismatchError, match="there are none"):
        merge_parts(store, [])
    assert not store.root.exists()


def test_merge_refuses_a_damaged_part_and_publishes_nothing(tmp_path):
    parts = save_parts(tmp_path)
    path = parts[2] / "rank-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    store = CheckpointStore(tmp_path / "merged")
    assert run("verify", parts[2]).exit_code == 1

    with pytest.raises(InvalidCheckpointError, match=r"rank-00002\.safetensors: tensor .*: checksum is"):
        merge_parts(store, parts)

    assert list(store.root.iterdir()) == []


def test_merge_refuses_copies_that_differ(tmp_path):
    parts = save_parts(tmp_path, change=(1, "model.w"))

    with pytest.raises(MismatchError, match=r"model\.w: \[3, 5\] at \[0, 0\]: ranks 0 and 1 differ"):
        merge_parts(CheckpointStore(tmp_path / "merged"), parts)


def test_values_that_differ_are_refused_unless_one_rank_is_chosen(tmp_path):
    parts = save_parts(tmp_path, values=lambda rank: {"seen": 10 if rank == 2 else 5})
    store = CheckpointStore(tmp_path / "merged")

    with pytest.raises(MismatchError, match="values of rank 2 differ from those of rank 0"):
        merge_parts(store, parts)
    merge_parts(store, parts, values_from=2)

    assert store.load().values == {"seen": 10}


def test_command_merges_the_newest_step_that_is_valid_everywhere(tmp_path):
    save_parts(tmp_path)
    later = save_parts(tmp_path, step=2)
    path = later[0] / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    nodes = [tmp_path / f"node{rank}" for rank in range(4)]

    result = run("merge", tmp_path / "merged", *nodes)

    assert result.exit_code == 0, result.output
    assert result.output == f"{tmp_path / 'merged' / 'step-00000001'}: 4 parts\n"
    assert CheckpointStore(tmp_path / "merged").steps() == [1]
    assert "no part of rank 3" in run("merge", tmp_path / "other", *nodes[:3], "--step", 1).output
    assert "checksum" in run("merge", tmp_path / "other", *nodes, "--step", 2).output


def test_commands_know_parts(tmp_path):
    part = save_parts(tmp_path)[3]

    assert "rank-00003-of-00004/step-00000001" in run("list", tmp_path / "node3").output
    assert run("verify", tmp_path / "node3").exit_code == 0
    inspected = run("inspect", part).output
    assert "rank 3's part of 4" in inspected
    assert "model.w  F32 [4, 5]" in inspected
    assert run("prune", part.parent, "--keep-last", 1).output == "nothing to delete\n"


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_impossible_ranks_are_refused(tmp_path, rank, world_size):
    with pytest.raises(ValuesError, match="expected 0 <= rank < world_size"):
        PartStore(tmp_path, rank=rank, world_size=world_size)
