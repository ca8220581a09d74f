"""What every version of this package wrote stays readable, to the last bit."""

import json

import jsonschema
import numpy as np
import pytest
from ms_ckpt import CheckpointStore, PartStore, RawTensor, __version__, merge_parts

ROWS = (np.arange(33_000) % 251).astype(np.float32).reshape(330, 100)
VALUES = {"learning_rate": 1e-4, "names": ["é", None, 1], "samples_consumed": 2**53 + 1}


@pytest.fixture(params=["0.1.0", "0.2.0"])
def written(request, contract):
    return contract / "written" / f"ms-ckpt-{request.param}"


def test_every_version_is_here(contract):
    assert __version__ in {path.name.removeprefix("ms-ckpt-") for path in (contract / "written").iterdir()}


def test_whole_checkpoint_is_read(written, words_of):
    loaded = CheckpointStore(written / "whole").load()

    assert (loaded.step, loaded.values) == (7, VALUES)
    expected = {
        "model.w": ROWS,
        "model.b": RawTensor("BF16", np.array([0x3FC0, 0x8000, 0x7FA1], np.uint16)),
        "optimizer.step": np.array(7, np.int64),
        "other.empty": np.zeros((0, 3), np.float32),
    }
    assert {name: words_of(tensor) for name, tensor in loaded.tensors.items()} == {
        name: words_of(tensor) for name, tensor in expected.items()
    }


def test_slices_are_read_with_running_checksums_and_without(written):
    with CheckpointStore(written / "whole").open(7) as folder:
        part = folder.read_slice("model.w", (slice(300, 310), slice(5, 50)))
        bytes_read = folder.bytes_read

    np.testing.assert_array_equal(part, ROWS[300:310, 5:50])
    assert (bytes_read == ROWS.nbytes) == ("0.1.0" in written.name)  # it had none and reads the whole chunk


def test_ranks_and_parts_are_read(written, contract, tmp_path):
    if not (written / "parts").exists():
        pytest.skip("this version wrote neither")
    np.testing.assert_array_equal(CheckpointStore(written / "ranks").load().tensors["model.w"], ROWS)
    halves = [PartStore(written / "parts", rank=rank, world_size=2).load().tensors["model.w"] for rank in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(halves, 1), ROWS)

    parts = sorted((written / "parts").glob("*/step-*"))
    merge_parts(CheckpointStore(tmp_path), parts)

    np.testing.assert_array_equal(CheckpointStore(tmp_path).load().tensors["model.w"], ROWS)
    schema = json.loads((contract / "index.schema.json").read_text())
    for part in parts:
        jsonschema.validate(json.loads((part / "index.json").read_text()), schema)
