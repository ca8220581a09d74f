import itertools
import json

import numpy as np
import pytest
from ms_ckpt import ConfigError, ValuesError, layout_of_plan, split_layout


@pytest.fixture
def plans(contract):
    return contract.parent / "plan" / "golden"


@pytest.mark.parametrize("name", ["data-2-tensor-2-pipeline-2", "data-2", "tensor-2-pipeline-2-tied", "world-1"])
def test_plan_gives_each_rank_its_slices_and_every_element_one_writer(plans, name):
    plan = json.loads((plans / f"plan-{name}.json").read_text())
    shapes = json.loads((plans / f"parameters{'-tied' if 'tied' in name else ''}.json").read_text())

    layout = layout_of_plan(plans / f"plan-{name}.json")

    assert layout.world_size == plan["world_size"]
    for parameter, shape in shapes.items():
        stored = f"optimizer.exp_avg.{parameter}"
        written = np.zeros(shape, int)
        for rank in plan["ranks"]:
            ranges = layout.ranges(stored, shape, rank["rank"])
            expected = rank["slices"].get(parameter)
            assert ranges == (None if expected is None else tuple(map(tuple, expected)))
            if ranges is not None and layout.replica(stored, shape, rank["rank"]) == 0:
                written[tuple(slice(*each) for each in ranges)] += 1
        assert (written == 1).all(), parameter


@pytest.mark.parametrize("shape", [(7, 5), (8, 4), (3, 1), (1, 9)])
@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2), (3, 2)])
def test_split_covers_every_element_once_however_uneven(shape, mesh):
    for axes in itertools.product((0, 1, None), repeat=len(mesh)):
        layout = split_layout({"x": shape}, mesh, {"*": axes})
        written = np.zeros(shape, int)
        for rank in range(layout.world_size):
            if layout.replica("x", shape, rank) == 0:
                written[layout.slices({"x": shape}, rank)["x"]] += 1
        assert (written == 1).all(), axes


def test_optimizer_state_lies_as_its_parameter_and_the_rest_is_whole():
    layout = split_layout({"up.weight": (4, 2)}, (2,), {"up.*": (0,)})

    assert layout.ranges("model.up.weight", (4, 2), 1) == ((2, 4), (0, 2))
    assert layout.ranges("optimizer.exp_avg.up.weight", (4, 2), 1) == ((2, 4), (0, 2))
    assert layout.ranges("optimizer.row_mean.up.weight", (4,), 1) == ((0, 4),)
    assert layout.ranges("optimizer.step", (), 1) == ()


def test_block_of_another_shape_than_the_layouts_is_refused_by_name():
    layout = split_layout({"up.weight": (4, 2)}, (2,), {"up.*": (0,)})

    block = layout.block("model.up.weight", np.zeros((2, 2)), 1)

    assert (block.offset, block.shape, block.replica) == ((2, 0), (4, 2), 0)
    with pytest.raises(ValuesError, match=r"model\.up\.weight: the layout gives rank 1 .*\(2, 4\).* data of \[4, 2\]"):
        layout.block("model.up.weight", np.zeros((4, 2)), 1)


@pytest.mark.parametrize(
    ("mesh", "splits", "message"),
    [
        ((2,), {"*": (2,)}, "x: has 2 axes, and axis 2 cannot be split"),
        ((2, 2), {"*": (0,)}, r"split '\*': 1 axes, but the mesh has 2"),
        ((0,), {}, "mesh: expected whole numbers >= 1"),
        ((), {}, "mesh: expected whole numbers >= 1"),
    ],
)
def test_splits_that_cannot_be_are_refused(mesh, splits, message):
    with pytest.raises(ConfigError, match=message):
        split_layout({"x": (4, 4)}, mesh, splits)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a plan"),
        ('{"format": "ms-parallel.plan", "version": 2}', "version 2; known"),
        ('{"format": "ms-parallel.plan", "version": 1, "world_size": 1, "ranks": []}', "ranks are not 0 to 0"),
        ('{"format": "ms-parallel.plan", "version": 1, "ranks": 3}', "not a plan: TypeError"),
    ],
)
def test_file_that_is_no_plan_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "plan.json"
    path.write_text(text)

    with pytest.raises(ConfigError, match=f"{path}: .*{message}"):
        layout_of_plan(path)


def test_missing_plan_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"plan\.json: not a plan: FileNotFoundError"):
        layout_of_plan(tmp_path / "plan.json")
