"""Nothing damaged is ever loaded: every byte of every file is flipped, cut, doubled or removed."""

import shutil

import numpy as np
import pytest
from ms_ckpt import (
    Block,
    CheckpointConfig,
    CheckpointStore,
    InvalidCheckpointError,
    PartStore,
    RawTensor,
    open_folder,
)

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


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Three ranks' files with running checksums in their headers, and a rank's part: every kind of file there is."""
    root = tmp_path_factory.mktemp("large")
    generator = np.random.default_rng(4)
    rows = generator.normal(size=(600, 300)).astype(np.float32)  # 0.7 MB: cut into pieces
    blocks = [
        {"model.w": [Block(data=rows[at : at + 200], offset=(at, 0), shape=(600, 300))], f"n{at}": [whole(rows[0])]}
        for at in (0, 200, 400)
    ]
    CheckpointStore(root / "whole").save_ranks(1, blocks, {"seed": 1})
    PartStore(root / "parts", rank=0, world_size=2).save(1, {"model.w": rows}, {"seed": 1})
    return root


def whole(array):
    return Block(data=array, offset=(0,) * array.ndim, shape=array.shape)


def test_2000_random_flips_of_one_bit_in_large_files_are_all_detected(large):
    generator = np.random.default_rng(9)
    files = sorted(path for path in large.rglob("*") if path.is_file())
    missed = []

    for number in range(2000):
        path = files[number % len(files)]
        size = path.stat().st_size
        header = min(size, 4096)  # half of the flips hit headers and documents, half the tensors' bytes
        place = int(generator.integers(header if number // len(files) % 2 else size))
        with path.open("r+b") as file:
            file.seek(place)
            before = file.read(1)
            file.seek(place)
            file.write(bytes([before[0] ^ (1 << int(generator.integers(8)))]))
        try:
            with open_folder(path.parent) as folder:
                folder.verify()
            missed.append((path.name, place))
        except InvalidCheckpointError:
            pass
        with path.open("r+b") as file:
            file.seek(place)
            file.write(before)

    assert missed == []
    for folder in {path.parent for path in files}:  # no false alarm
        with open_folder(folder) as opened:
            opened.verify()


def test_slice_that_touches_no_damaged_piece_loads_and_one_that_does_is_refused(large, tmp_path):
    shutil.copytree(large / "whole", tmp_path / "copy")
    path = tmp_path / "copy" / "step-00000001" / "rank-00001.safetensors"
    with CheckpointStore(tmp_path / "copy").open(1) as folder:
        tensor = folder.read_slice("model.w", (slice(200, 400), slice(None)))
    data = bytearray(path.read_bytes())
    data[data.index(tensor[150:].tobytes())] ^= 1  # row 350
    path.write_bytes(data)

    with CheckpointStore(tmp_path / "copy").open(1) as folder:
        np.testing.assert_array_equal(folder.read_slice("model.w", (slice(200, 240), slice(None))), tensor[:40])
        with pytest.raises(InvalidCheckpointError, match=r"tensor model\.w: checksum is .*bytes"):
            folder.read_slice("model.w", (slice(340, 360), slice(0, 1)))


def test_no_false_alarm_over_150_checkpoints_of_any_shape(tmp_path, words_of):
    generator = np.random.default_rng(11)
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=1))
    dtypes = ("<f4", "<f2", "<f8", "<i8", "u1", "?", "BF16")
    for step in range(150):
        tensors = {}
        for number in range(int(generator.integers(1, 5))):
            shape = tuple(generator.integers(0, 40, int(generator.integers(0, 4))))
            dtype = dtypes[int(generator.integers(len(dtypes)))]
            size = 2 if dtype == "BF16" else np.dtype(dtype).itemsize
            data = np.frombuffer(generator.bytes(size * int(np.prod(shape))), "u1")  # any bits: NaNs of all kinds
            words = (data % 2 if dtype == "?" else data).view("<u2" if dtype == "BF16" else dtype).reshape(shape)
            tensors[f"t{number}"] = RawTensor("BF16", words) if dtype == "BF16" else words
        store.save(step, tensors, {})

        loaded = store.load(step)

        assert {n: words_of(t) for n, t in loaded.tensors.items()} == {n: words_of(t) for n, t in tensors.items()}
