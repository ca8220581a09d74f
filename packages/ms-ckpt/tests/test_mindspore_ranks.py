"""A real job of two MindSpore processes: each saves its half of a parameter, and both resume from one step."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import sys
from pathlib import Path
import mindspore
import numpy as np
from mindspore.communication import get_rank, init
from ms_ckpt import CheckpointStore, RankStore, split_layout
from ms_ckpt.mindspore import restore, smallest_of_ranks, snapshot

init()
rank, root = get_rank(), Path(sys.argv[1])
layout = split_layout({"w": (6, 4)}, (2,), {"w": (0,)})
whole = np.arange(24, dtype=np.float32).reshape(6, 4)
parameters = {"w": mindspore.Parameter(mindspore.Tensor(whole[3 * rank : 3 * rank + 3]), name="net.w")}
ranks = RankStore(CheckpointStore(root), rank=rank, world_size=2, wait_seconds=60)
for step in (1, 2, 3):
    blocks = {name: layout.block(name, tensor, rank) for name, tensor in snapshot(parameters).items()}
    ranks.save(step, blocks, {"step": step})
    parameters["w"].copy_(parameters["w"] + 100)
smallest_of_ranks(0)  # both have returned from the last save
if rank == 0:  # damage that only rank 1 will see
    path = root / "step-00000003" / "rank-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
smallest_of_ranks(0)
loaded = ranks.load(agree=smallest_of_ranks, slices=layout.slices({"w": (6, 4)}, rank))
restore(parameters, loaded.tensors)
is_right = (parameters["w"].asnumpy() == whole[3 * rank : 3 * rank + 3] + 100).all()
(root / f"rank-{rank}.txt").write_text(f"{loaded.step} {loaded.values} {is_right}")
"""


@pytest.mark.slow
@pytest.mark.msrun
def test_two_mindspore_ranks_save_together_and_agree_on_the_step_that_is_whole_for_both(tmp_path):
    pytest.importorskip("mindspore")
    msrun = shutil.which("msrun", path=str(Path(sys.executable).parent)) or shutil.which("msrun")
    if msrun is None:
        pytest.skip("no msrun beside this Python")
    (tmp_path / "rank.py").write_text(RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [msrun, "--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True",
               f"--log_dir={tmp_path / 'logs'}", str(tmp_path / "rank.py"), str(tmp_path / "root")]  # fmt: skip
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "GLOG_v": "3"}

    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250, check=False
    )

    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    for rank in range(2):
        assert (tmp_path / "root" / f"rank-{rank}.txt").read_text() == "2 {'step': 2} True"
