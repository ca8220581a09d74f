"""Other ranks than those that saved: the same tensors, and no more bytes read than needed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from ms_ckpt import (
    CheckpointConfig,
    CheckpointStore,
    InvalidCheckpointError,
    RawTensor,
    ValuesError,
    reshard,
    split_layout,
)
from ms_ckpt.cli import main
from ms_ckpt.layout import Layout

MESHES = {
    "2x2": ((2, 2), {"*.weight": (0, 1)}),
    "4x1": ((4,), {"*.weight": (0,)}),
    "1x4": ((4,), {"*.weight": (1,)}),
    "3": ((3,), {"*.weight": (0,)}),
    "2": ((2,), {"*.weight": (1,)}),
    "1": ((1,), {}),
}


@pytest.fixture(scope="module")
def whole():
    generator = np.random.default_rng(5)
    words = generator.integers(0, 1 << 16, (9, 7), dtype=np.uint16)  # NaN payloads and all
    return {
        "model.up.weight": RawTensor("BF16", words),
        "model.down.weight": generator.normal(size=(10, 5)).astype(np.float32),
        "model.experts.weight": generator.normal(size=(4, 6, 3)).astype(np.float16),
        "optimizer.exp_avg.up.weight": generator.normal(size=(9, 7)).astype(np.float32),
        "optimizer.step": np.array(12, np.int64),
        "model.empty.weight": np.zeros((0, 4), np.float32),
    }


def layout_of(whole, mesh):
    return split_layout({name: tensor.shape for name, tensor in whole.items()}, *MESHES[mesh])


@pytest.mark.parametrize("second", MESHES)
@pytest.mark.parametrize("first", ["2x2", "1x4"])
def test_any_layout_to_any_other_keeps_every_bit(tmp_path, whole, words_of, first, second):
    roots = [CheckpointStore(tmp_path / name) for name in ("whole", "first", "second")]
    roots[0].save(3, whole, {"seen": 5})
    for source, target, mesh in ((*roots[:2], first), (*roots[1:], second)):
        with source.open(3) as folder:
            reshard(folder, target, layout_of(whole, mesh))

    loaded = roots[2].load()

    assert loaded.values == {"seen": 5}
    assert {name: words_of(tensor) for name, tensor in loaded.tensors.items()} == {
        name: words_of(tensor) for name, tensor in whole.items()
    }
    with roots[2].open(3) as folder:
        assert len(folder.index.files) == layout_of(whole, second).world_size


def test_reading_rows_costs_hardly_more_than_their_bytes(tmp_path):
    rows = np.arange(4096 * 512, dtype=np.float32).reshape(4096, 512)  # 8 MB
    store = CheckpointStore(tmp_path)
    store.save(1, {"w": rows}, {})

    with store.open(1) as folder:
        for low, high in ((0, 1365), (1365, 2730), (2730, 4096)):
            np.testing.assert_array_equal(folder.read_slice("w", (slice(low, high), slice(None))), rows[low:high])
        assert folder.bytes_read <= 1.05 * rows.nbytes


def test_damaged_source_publishes_nothing(tmp_path, whole):
    source, target = CheckpointStore(tmp_path / "a"), CheckpointStore(tmp_path / "b")
    path = source.save(1, whole, {}) / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")

    with source.open(1) as folder, pytest.raises(InvalidCheckpointError, match="checksum"):
        reshard(folder, target, layout_of(whole, "2x2"))

    assert list(target.root.iterdir()) == []


def test_layout_with_a_hole_is_refused_by_name(tmp_path):
    source = CheckpointStore(tmp_path / "a")
    source.save(1, {"w": np.zeros((4, 2))}, {})
    hole = Layout({"w": (4, 2)}, [{"w": ((0, 2), (0, 2))}, {"w": ((3, 4), (0, 2))}])

    with source.open(1) as folder, pytest.raises(ValuesError, match="tensor w: its chunks leave a gap"):
        reshard(folder, CheckpointStore(tmp_path / "b"), hole)


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_command_writes_the_ranks_asked_for(tmp_path, whole):
    CheckpointStore(tmp_path / "a", CheckpointConfig()).save(3, whole, {})

    rows = run("reshard", tmp_path / "a", tmp_path / "rows", "--ranks", 3)
    mesh = run("reshard", tmp_path / "a", tmp_path / "mesh", "--mesh", "2x2", "--split", "*.down.weight=1,0")

    assert (rows.exit_code, mesh.exit_code) == (0, 0), rows.output + mesh.output
    assert "step-00000003: 3 ranks; read " in rows.output
    assert run("diff", tmp_path / "a", tmp_path / "rows").exit_code == 0
    assert run("diff", tmp_path / "a", tmp_path / "mesh").exit_code == 0
    with CheckpointStore(tmp_path / "mesh").open(3) as folder:
        chunks = folder.index.tensors["model.down.weight"].chunks
        assert sorted(chunk.shape for chunk in chunks) == [(5, 2), (5, 2), (5, 3), (5, 3)]
    assert "already saved" in run("reshard", tmp_path / "a", tmp_path / "rows", "--ranks", 2).output
    assert run("reshard", tmp_path / "a", tmp_path / "rows", "--ranks", 2, "--replace").exit_code == 0


def test_command_follows_a_plan(tmp_path, contract):
    golden = contract.parent / "plan" / "golden"
    shapes = json.loads((golden / "parameters.json").read_text())
    tensors = {f"model.{name}": np.random.default_rng(1).normal(size=shape) for name, shape in shapes.items()}
    CheckpointStore(tmp_path / "a").save(1, tensors, {})
    plan = golden / "plan-data-2-tensor-2-pipeline-2.json"

    result = run("reshard", tmp_path / "a", tmp_path / "b", "--plan", plan)

    assert result.exit_code == 0, result.output
    assert run("diff", tmp_path / "a", tmp_path / "b").exit_code == 0
    with CheckpointStore(tmp_path / "b").open(1) as folder:
        for chunk in folder.index.tensors["model.blocks.0.attention.query.weight"].chunks:
            rank = json.loads(plan.read_text())["ranks"][int(chunk.file[5:10])]
            ranges = rank["slices"]["blocks.0.attention.query.weight"]
            assert [[at, at + size] for at, size in zip(chunk.offset, chunk.shape, strict=True)] == ranges


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give one of --ranks N"),
        (["--ranks", 2, "--mesh", "2"], "give one of --ranks N"),
        (["--mesh", "2xa"], "--mesh '2xa': expected whole numbers"),
        (["--mesh", "2", "--split", "w"], "expected PATTERN=AXES"),
        (["--mesh", "2", "--split", "*=0,1"], "2 axes, but the mesh has 1"),
    ],
)
def test_command_refuses_what_makes_no_layout(tmp_path, options, message):
    CheckpointStore(tmp_path / "a").save(1, {"w": np.zeros((2, 2))}, {})

    result = run("reshard", tmp_path / "a", tmp_path / "b", *options)

    assert result.exit_code == 1
    assert message in result.output
    assert not (tmp_path / "b").exists()
