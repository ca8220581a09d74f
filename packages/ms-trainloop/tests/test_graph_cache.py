"""Tests of the compile cache: a warm step gives the cold one's numbers, and nothing that changed meets an old graph."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from ms_trainloop import TrainConfig, TrainStep
import scale

class Model(nn.Cell):
    def __init__(self, factor):
        super().__init__()
        self.table = Parameter(Tensor(np.linspace(-1, 1, 49, dtype=np.float32).reshape(7, 7)), name="table")
        self.factor = factor
    def construct(self, input_ids, position_ids=None, segment_ids=None):
        rows = ops.gather(self.table, input_ids.reshape((-1,)), 0) * self.factor
        return scale.scaled(rows).reshape((2, 4, 7))

rate, factor = float(sys.argv[2]), float(sys.argv[3])
config = TrainConfig(
    steps=9, global_batch_size=2, micro_batch_size=2, learning_rate=rate, compile_cache=sys.argv[1], warmup_steps=0
)
step = TrainStep(Model(factor), config)
ids = np.arange(8, dtype=np.int32).reshape(2, 4) % 7
batch = {"input_ids": ids, "labels": (ids + 1) % 7, "position_ids": ids, "segment_ids": ids}
results = [step.run(batch) for _ in range(3)]
print(step.is_warm, [(r.loss_sum.hex(), r.grad_norm.hex(), r.learning_rate) for r in results])
"""
SCALE = "def scaled(rows):\n    return rows * {0}\n"


@pytest.fixture
def start(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*, cache="cache", rate=0.1, factor=1.0, source="2.0"):
        (tmp_path / "scale.py").write_text(SCALE.format(source))
        folder = str(tmp_path / cache) if cache else ""
        command = [sys.executable, "-B", "program.py", folder, str(rate), str(factor)]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "GLOG_v": "3"}, timeout=200
        )
        assert done.returncode == 0, done.stderr
        warm, _, numbers = done.stdout.strip().partition(" ")
        return warm == "True", numbers

    return run


@pytest.mark.slow
def test_a_warm_step_equals_the_cold_one_and_a_change_of_any_kind_compiles_again(start, tmp_path):
    cold = start()

    assert start(cache="") == (False, cold[1])
    assert start() == (True, cold[1])
    for change in ({"rate": 0.2}, {"factor": 1.5}, {"source": "3.0"}):
        expected = start(cache="", **change)
        assert start(**change) == expected, change
        assert expected[1] != cold[1], "the change must show in the numbers"
    assert len(list((tmp_path / "cache").iterdir())) == 4


@pytest.mark.slow
def test_a_damaged_or_half_written_folder_is_made_again(start, tmp_path):
    cold = start()
    (graph,) = (tmp_path / "cache").rglob("*.mindir")
    graph.chmod(0o600)
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)

    assert start() == (False, cold[1])
    (checksums,) = (tmp_path / "cache").rglob("checksums.json")
    checksums.unlink()
    assert start() == (False, cold[1])
    assert start() == (True, cold[1])


def test_a_cell_that_holds_what_cannot_be_hashed_is_compiled_without_the_cache(lab, tmp_path, caplog):
    step = lab.make_step(lab.make_config(compile_cache=str(tmp_path / "cache")))
    step.model.source = iter(())

    result = step.run(lab.make_batch(lab.make_rows(4)))

    assert result.is_applied
    assert "model.source (builtins.tuple_iterator) cannot be hashed" in caplog.text
    assert not (tmp_path / "cache").exists()
