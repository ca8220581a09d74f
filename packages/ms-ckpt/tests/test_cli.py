import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from ms_ckpt import CheckpointConfig, CheckpointStore
from ms_ckpt.cli import main


@pytest.fixture
def root(tmp_path, tensors, values):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))
    store.save(1, tensors, values)
    store.save(2, tensors, values)
    store.save(3, {**tensors, "optimizer.step": np.array(9)}, {**values, "epoch": 1})
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


def damage(root, step):
    path = root / f"step-{step:08d}" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")


def test_list_tells_valid_from_damaged(root):
    damage(root, 2)

    lines = run("list", root).output.splitlines()

    assert [line.split()[0] for line in lines] == ["step-00000001", "step-00000002", "step-00000003"]
    assert lines[0].endswith("valid")
    assert "DAMAGED: rank-00000.safetensors: tensor" in lines[1]


def test_verify_fails_when_one_checkpoint_is_damaged(root):
    assert run("verify", root).exit_code == 0
    damage(root, 2)

    assert run("verify", root).exit_code == 1
    assert run("verify", root / "step-00000003").exit_code == 0


def test_inspect_shows_statistics_and_counts_what_is_not_finite(root, values):
    found = json.loads(run("inspect", root, "--json").output)

    assert found["step"] == 3
    assert found["values"] == {**values, "epoch": 1}
    assert found["tensors"]["model.norm.weight"]["num_non_finite"] == 2
    assert found["tensors"]["model.norm.weight"]["maximum"] == 1.5
    assert found["tensors"]["model.lm_head.weight"]["num_non_finite"] == 3
    assert "NOT FINITE: 2" in run("inspect", root / "step-00000001").output


def test_diff_of_equal_checkpoints_succeeds(root):
    result = run("diff", root / "step-00000001", root / "step-00000002")

    assert (result.exit_code, result.output) == (0, "equal to the last bit\n")


def test_diff_names_tensors_and_values_that_differ(root):
    result = run("diff", root / "step-00000001", root)

    assert result.exit_code == 1
    assert "optimizer.step: 1 of 1 elements differ, by at most 2" in result.output
    assert "values.epoch: 0 against 1" in result.output
    assert "2 differences, the first in optimizer.step" in result.output


def test_prune_says_what_it_would_do_and_does_it(root):
    assert run("prune", root, "--keep-last", 1, "--dry-run").output == "would delete step 1\nwould delete step 2\n"
    assert CheckpointStore(root).steps() == [1, 2, 3]

    assert run("prune", root, "--keep-last", 1, "--keep-every", 2).output == "deleted step 1\n"
    assert CheckpointStore(root).steps() == [2, 3]


@pytest.mark.parametrize("command", ["verify", "inspect", "diff"])
def test_bad_input_is_one_line_and_exit_code_1(tmp_path, command):
    result = run(command, tmp_path, *([tmp_path] if command == "diff" else []))

    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1


def test_help_imports_no_mindspore_and_the_core_needs_none():
    script = "import sys, ms_ckpt, ms_ckpt.cli, ms_ckpt.mindspore; assert 'mindspore' not in sys.modules"

    subprocess.run([sys.executable, "-c", script], check=True)
