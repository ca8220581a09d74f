"""Fixtures: the module `lab.py`, loaded by path because importlib mode gives tests no siblings, and a whole run."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def contracts():
    return HERE.parents[2] / "integration_tests" / "contracts"


@pytest.fixture(scope="session")
def lab():
    spec = importlib.util.spec_from_file_location("ms_trainloop_lab", HERE / "lab.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def run_lab():
    """Runs lab.py in a new process and returns it finished."""

    def run(*arguments):
        return subprocess.run(
            [sys.executable, HERE / "lab.py", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "GLOG_v": "3"},
            timeout=120,
        )

    return run


@pytest.fixture(scope="session")
def uninterrupted(lab, tmp_path_factory):
    """A 12-step run (accumulation 2, 4 rows a step, about 5 epochs of 10 rows) that saved after every step."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    checkpointer, results = lab.MemoryCheckpointer(), {}
    step = lab.make_step(lab.make_config(save_every=1))
    from ms_trainloop.loop import train

    train(
        step,
        lab.batches_of(lab.make_rows(), 4),
        run_dir=folder,
        checkpointer=checkpointer,
        on_step=results.__setitem__,
        samples_per_epoch=lab.ROWS,
        tokenizer_fingerprint="sha256:1",
        progress=None,
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"states": checkpointer.states, "results": results, "weights": lab.weights_of(step), "lines": lines}
