"""Nothing damaged is ever loaded: every byte of every file is flipped, cut, doubled or removed."""

import shutil

import numpy as np
import pytest
from ms_ckpt import CheckpointStore, InvalidCheckpointError

FILES = ["COMMIT", "index.json", "rank-00000.safetensors", "state.json"]


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "root")
    tensors = {"model.w": np.arange(6, dtype=np.float32).reshape(2, 3), "optimizer.step": np.array(3, np.int32)}
    store.save(1, tensors, {"seed": 1})
    return store


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_in_any_byte_is_detected(store, name):
    path = store.root / "step-00000001" / name
    whole = path.read_bytes()
    missed = []

    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            store.load(1)
        except InvalidCheckpointError:
            continue
        missed.append(place)

    assert missed == []
    path.write_bytes(whole)
    assert store.load(1).step == 1  # no false alarm


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_or_with_bytes_appended_is_detected(store, name):
    path = store.root / "step-00000001" / name
    whole = path.read_bytes()

    for changed in [whole[:length] for length in range(len(whole))] + [whole + b"\n", whole + whole]:
        path.write_bytes(changed)
        with pytest.raises(InvalidCheckpointError):
            store.load(1)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(store, name):
    (store.root / "step-00000001" / name).unlink()

    with pytest.raises(InvalidCheckpointError, match=f"{name}.*(missing|No such file)"):
        store.load(1)


@pytest.mark.parametrize("name", FILES)
def test_a_link_instead_of_a_file_is_refused(store, name, tmp_path):
    path = store.root / "step-00000001" / name
    shutil.copy(path, tmp_path / "elsewhere")
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(InvalidCheckpointError, match=name):
        store.load(1)


def test_an_unexpected_file_is_named(store):
    (store.root / "step-00000001" / "rank-00001.safetensors").write_bytes(b"")

    with pytest.raises(InvalidCheckpointError, match=r"unexpected file rank-00001\.safetensors"):
        store.load(1)


def test_verify_finds_a_flipped_tensor_byte(store):
    path = store.root / "step-00000001" / "rank-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    assert store.steps() == [1]  # the cheap check does not read tensors, and says so
    with pytest.raises(InvalidCheckpointError, match=r"tensor optimizer.step|tensor model.w"):
        store.verify(1)
