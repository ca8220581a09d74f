"""MindSpore's files of several ranks with its strategy files, held against MindSpore's own merge of the same files."""

import itertools
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from ms_ckpt import CheckpointStore, InvalidCheckpointError, MismatchError, ValuesError
from ms_ckpt.cli import main
from ms_ckpt.mindspore_file import write_mindspore_file
from ms_ckpt.rank_files import read_rank_files
from ms_ckpt.strategy import read_strategy

# name -> (whole shape, device matrix, tensor map, optimizer shard step and size)
LAYOUTS = {
    "rows": ((8, 6), [2, 2], [1, -1], (0, 0)),
    "columns": ((8, 6), [2, 2], [-1, 0], (0, 0)),
    "both": ((8, 6), [2, 2], [1, 0], (0, 0)),
    "swapped": ((8, 6), [2, 2], [0, 1], (0, 0)),
    "copies": ((5, 3), [2, 2], [-1, -1], (0, 0)),
    "vector": ((8,), [4], [0], (0, 0)),
    "sharded": ((8, 6), [2, 2], [0, -1], (2, 2)),
    "sharded whole": ((8, 3), [4], [-1, -1], (1, -1)),
    "sharded in part": ((8, 3), [4], [-1, -1], (1, 2)),
}


@pytest.fixture(scope="module")
def mindspore():
    return pytest.importorskip("mindspore")


def whole(name, scale=1):
    shape = LAYOUTS[name][0]
    return (np.arange(math.prod(shape), dtype=np.float32).reshape(shape) + len(name)) * scale


def write_strategy(path, names, stage=0, change=None):
    """A strategy file as MindSpore writes it, by its own message classes."""
    from mindspore.train import node_strategy_pb2

    document = node_strategy_pb2.ParallelStrategyMap()
    document.current_stage = 1
    item = document.parallel_strategy_item.add()
    item.node_name = "MatMul"
    item.parallel_strategys.stage = stage
    for name in names:
        _, matrix, tensor_map, (step, size) = LAYOUTS[name]
        item = document.parallel_layout_item.add()
        item.param_name = name
        layouts = item.parallel_layouts
        layouts.dev_matrix.add().dim.extend(matrix)
        layouts.tensor_map.add().dim.extend(tensor_map)
        layouts.param_split_shape.add()
        layouts.indices_offset.add()
        layouts.field, layouts.opt_weight_shard_step, layouts.opt_weight_shard_size = 0, step, size
        if change:
            change(layouts)
    path.write_bytes(document.SerializeToString())


def write_json(path, names, stage=0):
    items = {
        name: {"dev_matrix": matrix, "tensor_map": tensor_map, "field": 0,
               "opt_weight_shard_step": step, "opt_weight_shard_size": size}
        for name in names for _, matrix, tensor_map, (step, size) in [LAYOUTS[name]]
    }  # fmt: skip
    path.write_text(json.dumps({"parallel_strategy_item": {"MatMul": {"stage": stage}}, "parallel_layout_item": items}))


def cut(name, device):
    """The slice that a device holds, computed from the definition: each axis by the matrix axes that split it."""
    _, matrix, tensor_map, (_, size) = LAYOUTS[name]
    coordinates = np.unravel_index(device, matrix)
    array = whole(name)
    for axis, entry in enumerate(tensor_map):
        if entry != -1:
            array = np.split(array, matrix[-1 - entry], axis)[coordinates[-1 - entry]]
    if size:
        free = [axis for axis in range(len(matrix)) if len(matrix) - 1 - axis not in tensor_map]
        shards = math.prod(matrix[axis] for axis in free) if size == -1 else size
        place = int(np.ravel_multi_index([coordinates[axis] for axis in free], [matrix[axis] for axis in free]))
        array = np.split(array, shards, 0)[place % shards]
    return array


def save_ranks(folder, names, num_devices=4, stages=1, has_strings=True):
    for rank in range(num_devices * stages):
        tensors = {name: cut(name, rank % num_devices) for name in names}
        tensors["step"] = np.array(3, np.int32)
        (folder / f"rank_{rank}").mkdir(parents=True)
        write_mindspore_file(
            folder / f"rank_{rank}" / "net-1_3.ckpt", tensors, {"note": f"rank {rank}"} if has_strings else {}
        )


def read(folder, strategy, **options):
    tensors, strings = read_rank_files(folder, strategy, **options)
    return {name: lazy.read() for name, lazy in tensors.items()}, strings


@pytest.mark.parametrize("write", [write_strategy, write_json])
def test_slices_of_all_ranks_make_the_whole_tensors(mindspore, tmp_path, write):
    strategy = tmp_path / ("s.json" if write is write_json else "s.ckpt")
    write(strategy, LAYOUTS)
    save_ranks(tmp_path / "ranks", LAYOUTS)

    tensors, strings = read(tmp_path / "ranks", strategy)

    assert strings == {"note": "rank 0"}
    assert tensors.pop("step") == 3
    assert tensors.keys() == LAYOUTS.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, whole(name), err_msg=name)


def test_mindspores_own_transformation_gives_the_same(mindspore, tmp_path):
    write_strategy(tmp_path / "s.ckpt", LAYOUTS)
    save_ranks(tmp_path / "ranks", LAYOUTS, has_strings=False)  # its transformation fails on strings

    mindspore.transform_checkpoints(
        str(tmp_path / "ranks"), str(tmp_path / "one"), "net", str(tmp_path / "s.ckpt"), None
    )
    theirs = mindspore.load_checkpoint(str(tmp_path / "one" / "rank_0" / "net0.ckpt"))

    ours, _ = read(tmp_path / "ranks", tmp_path / "s.ckpt")
    for name in LAYOUTS:
        np.testing.assert_array_equal(ours[name], theirs[name].asnumpy(), err_msg=name)


def test_a_strategy_read_wrongly_would_be_noticed(mindspore, tmp_path):
    write_strategy(
        tmp_path / "s.ckpt", ["both"], change=lambda layouts: layouts.tensor_map[0].dim.__setitem__(slice(0, 2), [0, 1])
    )
    save_ranks(tmp_path / "ranks", ["both"])

    assert not np.array_equal(read(tmp_path / "ranks", tmp_path / "s.ckpt")[0]["both"], whole("both"))


def test_pipeline_stages_are_joined_from_one_file_each_or_a_merged_one(mindspore, tmp_path):
    (tmp_path / "stages").mkdir()
    write_strategy(tmp_path / "stages" / "s0.ckpt", ["rows", "copies"], stage=0)
    write_strategy(tmp_path / "stages" / "s1.ckpt", ["both", "copies"], stage=1)
    files = [str(path) for path in sorted((tmp_path / "stages").iterdir())]
    mindspore.merge_pipeline_strategys(str(tmp_path / "stages"), str(tmp_path / "merged.ckpt"))
    for rank, names in itertools.chain(((rank, ["rows", "copies"]) for rank in range(4)),
                                       ((rank, ["both", "copies"]) for rank in range(4, 8))):  # fmt: skip
        (tmp_path / "ranks" / f"rank_{rank}").mkdir(parents=True)
        tensors = {name: cut(name, rank % 4) for name in names}
        write_mindspore_file(tmp_path / "ranks" / f"rank_{rank}" / "n.ckpt", tensors, {})

    assert len(files) == 2
    for strategy in (tmp_path / "stages", tmp_path / "merged.ckpt"):
        tensors, _ = read(tmp_path / "ranks", strategy)
        assert tensors.keys() == {"rows", "copies", "both"}
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(tensor, whole(name), err_msg=name)


def test_axis_split_by_two_device_axes(mindspore, tmp_path):
    def change(layouts):
        del layouts.tensor_map[:]
        layouts.tensor_map.add().dim.extend([1, 0])
        layouts.tensor_map.add().dim.extend([-1])

    write_strategy(tmp_path / "s.ckpt", ["both"], change=change)
    for rank in range(4):
        (tmp_path / "ranks" / f"rank_{rank}").mkdir(parents=True)
        write_mindspore_file(
            tmp_path / "ranks" / f"rank_{rank}" / "n.ckpt", {"both": np.split(whole("both"), 4)[rank]}, {}
        )

    np.testing.assert_array_equal(read(tmp_path / "ranks", tmp_path / "s.ckpt")[0]["both"], whole("both"))


@pytest.fixture
def job(mindspore, tmp_path):
    write_strategy(tmp_path / "s.ckpt", ["rows", "copies"])
    save_ranks(tmp_path / "ranks", ["rows", "copies"])
    return tmp_path / "ranks", tmp_path / "s.ckpt"


def rewrite(folder, rank, **changes):
    path = folder / f"rank_{rank}" / "net-1_3.ckpt"
    path.unlink()
    tensors = {"rows": cut("rows", rank), "copies": cut("copies", rank), "step": np.array(3, np.int32), **changes}
    write_mindspore_file(path, {name: tensor for name, tensor in tensors.items() if tensor is not None}, {})


def test_copies_that_differ_are_refused_by_name(job):
    rewrite(job[0], 3, copies=whole("copies", scale=2))

    with pytest.raises(MismatchError, match="copies: ranks 0 and 3 hold the same slice with other values"):
        read(*job)


def test_missing_ranks_and_surplus_files_are_listed_at_once(job):
    folder, strategy = job
    (folder / "rank_1" / "net-1_3.ckpt").unlink()
    (folder / "rank_2").rename(folder / "elsewhere")
    (folder / "rank_3" / "net-1_2.ckpt").write_bytes(b"")

    with pytest.raises(InvalidCheckpointError) as caught:
        read(folder, strategy)

    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "rank_1: expected one file that fits '*' (--files), found none",
        "rank_2: missing",
        "rank_3: expected one file that fits '*' (--files), found net-1_2.ckpt, net-1_3.ckpt",
    ]


def test_one_of_several_files_can_be_chosen(job):
    folder, strategy = job
    (folder / "rank_3" / "net-1_2.ckpt").write_bytes(b"")

    assert read(folder, strategy, pattern="*-1_3.ckpt")[0]["step"] == 3


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"rows": np.zeros((2, 6), np.float32)}, MismatchError, r"rows: F32 \[4, 6\] by rank 2"),
        ({"rows": np.zeros((4, 6), np.float16)}, MismatchError, r"rows: F16 \[8, 6\] by rank 2"),
        ({"rows": np.zeros(4, np.float32)}, ValuesError, "rows: 1 axes, but its strategy splits 2"),
    ],
)
def test_slices_that_do_not_fit_are_refused_by_name_and_rank(job, changes, error, message):
    rewrite(job[0], 2, **changes)

    with pytest.raises(error, match=message):
        read(*job)


def test_slice_that_nobody_saved_is_a_gap(job):
    for rank in (2, 3):
        rewrite(job[0], rank, rows=None)

    with pytest.raises(InvalidCheckpointError, match="tensor rows: its chunks leave a gap"):
        read(*job)


def test_number_of_ranks_must_fit_the_strategy(job, tmp_path):
    write_strategy(tmp_path / "eight.ckpt", ["rows"], change=lambda layouts: layouts.dev_matrix[0].dim.insert(0, 2))

    with pytest.raises(MismatchError, match="4 ranks, but the strategy has 1 pipeline stages of 8 devices"):
        read(job[0], tmp_path / "eight.ckpt")


def test_strategies_that_are_none_or_not_understood_are_refused(mindspore, tmp_path):
    (tmp_path / "a.ckpt").write_bytes(b"nonsense")
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / "c.ckpt").write_bytes(b"")
    write_strategy(
        tmp_path / "d.ckpt", ["rows"], change=lambda layouts: layouts.param_split_shape[0].dim.extend([3, 5])
    )
    write_strategy(tmp_path / "e.ckpt", ["rows"], change=lambda layouts: layouts.tensor_map[0].dim.__setitem__(0, 5))
    write_strategy(tmp_path / "f.ckpt", ["rows"], stage=1)

    for name, error, message in (
        ("a.ckpt", InvalidCheckpointError, "not a strategy file"),
        ("b.json", InvalidCheckpointError, "not a strategy file"),
        ("c.ckpt", InvalidCheckpointError, "holds no layout"),
        ("d.ckpt", ValuesError, "rows: uneven or field splits"),
        ("e.ckpt", InvalidCheckpointError, r"rows: tensor_map \[5, -1\] leaves"),
        ("f.ckpt", InvalidCheckpointError, r"pipeline stages \[1\]; some are missing"),
        ("g.ckpt", InvalidCheckpointError, "cannot be read"),
    ):
        with pytest.raises(error, match=message):
            read_strategy(tmp_path / name)


def test_command_makes_a_checkpoint_of_the_ranks_files(job, tmp_path):
    folder, strategy = job

    result = CliRunner().invoke(main, list(map(str, (
        "convert", folder, tmp_path / "root", "--to", "checkpoint", "--strategy", strategy, "--step", 3
    ))))  # fmt: skip

    assert result.exit_code == 0, result.output
    loaded = CheckpointStore(tmp_path / "root").load()
    assert (loaded.step, loaded.values) == (3, {"strings": {"note": "rank 0"}})
    np.testing.assert_array_equal(loaded.tensors["rows"], whole("rows"))
