"""MindSpore's own files, read without it, and ours, read by it."""

import numpy as np
import pytest
from ms_ckpt import InvalidCheckpointError, RawTensor, ValuesError
from ms_ckpt.mindspore_file import read_mindspore_file, write_mindspore_file

TENSORS = {
    "embedding.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
    "half": np.array([1.5, -0.0, np.inf], np.float16),
    "double": np.array([[1e300]]),
    "flags": np.array([True, False]),
    "count": np.array(7, np.int64),
    "one": np.array([7], np.int32),
    "bytes": np.arange(5, dtype=np.uint8),
    "raw": RawTensor("BF16", np.array([0x3FC0, 0x8000, 0x7FA1], np.uint16)),
}
STRINGS = {"note": "héllo 训练"}


@pytest.fixture(scope="module")
def mindspore():
    return pytest.importorskip("mindspore")


@pytest.fixture
def written(tmp_path):
    write_mindspore_file(tmp_path / "a.ckpt", TENSORS, STRINGS)
    return tmp_path / "a.ckpt"


def test_what_is_written_is_read_back_to_the_last_bit(written, words_of):
    tensors, strings = read_mindspore_file(written)

    assert strings == STRINGS
    assert {name: words_of(lazy.read()) for name, lazy in tensors.items()} == {
        name: words_of(tensor) for name, tensor in TENSORS.items()
    }


def test_mindspore_reads_what_is_written_and_verifies_its_checksum(mindspore, written, words_of):
    loaded = mindspore.load_checkpoint(str(written), crc_check=True)

    assert loaded["note"] == STRINGS["note"]
    for name, tensor in TENSORS.items():
        assert loaded[name].shape == tensor.shape, name
        assert loaded[name].get_bytes() == words_of(tensor)[2], name


@pytest.mark.parametrize("crc_check", [False, True])
def test_files_of_mindspore_are_read_to_the_last_bit(mindspore, tmp_path, words_of, crc_check):
    given = {name: tensor for name, tensor in TENSORS.items() if not isinstance(tensor, RawTensor)}
    data = [{"name": name, "data": mindspore.Tensor(tensor)} for name, tensor in given.items()]
    extra = {"epoch": 3, "rate": 0.5, "is_done": True, "text": "é"}
    mindspore.save_checkpoint(data, str(tmp_path / "m.ckpt"), append_dict=extra, crc_check=crc_check)

    tensors, strings = read_mindspore_file(tmp_path / "m.ckpt")

    assert strings == {"text": "é"}
    assert (tensors["epoch"].read(), tensors["rate"].read(), tensors["is_done"].read()) == (3, 0.5, True)
    for name, tensor in given.items():
        assert words_of(tensors[name].read()) == words_of(tensor), name


def test_tensor_of_several_entries_is_joined(tmp_path, monkeypatch, mindspore):
    monkeypatch.setattr("ms_ckpt.mindspore_file._SLICE", 16)
    array = np.arange(30, dtype=np.float32).reshape(5, 6)
    write_mindspore_file(tmp_path / "a.ckpt", {"before": np.ones(2), "w": array, "after": np.ones(9)}, {})

    np.testing.assert_array_equal(read_mindspore_file(tmp_path / "a.ckpt")[0]["w"].read(), array)
    np.testing.assert_array_equal(mindspore.load_checkpoint(str(tmp_path / "a.ckpt"))["w"].asnumpy(), array)


def test_every_flipped_byte_is_found(written):
    whole = written.read_bytes()
    missed = []
    for place in range(len(whole)):
        written.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        try:
            read_mindspore_file(written)
        except (InvalidCheckpointError, ValuesError):
            continue
        missed.append(place)

    assert missed == []


def test_file_cut_anywhere_is_found(tmp_path):
    path = tmp_path / "a.ckpt"
    write_mindspore_file(path, {"a": np.arange(3.0), "b": np.ones(2)}, {})
    whole = path.read_bytes()
    boundary = whole.index(b"\x01b") - 3  # one that ends between two entries and without checksum is a shorter file
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length in (boundary, len(whole) - 17):
            assert set(read_mindspore_file(path)[0]) <= {"a", "b"}
            continue
        with pytest.raises(InvalidCheckpointError, match=r"a\.ckpt: "):
            read_mindspore_file(path)


def test_encrypted_file_is_refused_with_the_way_out(mindspore, tmp_path):
    net = mindspore.nn.Dense(2, 2)
    mindspore.save_checkpoint(net, str(tmp_path / "e.ckpt"), enc_key=b"0123456789ABCDEF")

    with pytest.raises(InvalidCheckpointError, match=r"or encrypted.*dec_key"):
        read_mindspore_file(tmp_path / "e.ckpt")


def test_types_that_either_side_lacks_are_refused_by_name(tmp_path):
    given = {"w": RawTensor("F8_E4M3", np.zeros(3, np.uint8)), "v": np.zeros(0)}
    with pytest.raises(ValuesError) as caught:
        write_mindspore_file(tmp_path / "a.ckpt", given, {"note": ""})
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "w: no type for F8_E4M3",
        "v: shape [0] would come back as a scalar",
        "note: an empty string makes the file unreadable",
    ]
    assert list(tmp_path.iterdir()) == []

    write_mindspore_file(tmp_path / "b.ckpt", {"w": np.zeros(3, np.int8)}, {})
    data = (tmp_path / "b.ckpt").read_bytes()[:-17].replace(b"Int8", b"Int4")
    (tmp_path / "b.ckpt").write_bytes(data)
    with pytest.raises(ValuesError, match="w: type 'Int4' is not read here"):
        read_mindspore_file(tmp_path / "b.ckpt")


def test_entries_that_contradict_themselves_are_refused(tmp_path):
    write_mindspore_file(tmp_path / "a.ckpt", {"w": np.zeros(3, np.int8), "v": np.zeros(3, np.int8)}, {})
    data = (tmp_path / "a.ckpt").read_bytes()[:-17]

    (tmp_path / "twice.ckpt").write_bytes(data + data)
    (tmp_path / "shape.ckpt").write_bytes(data.replace(b"\x08\x03", b"\x08\x04", 1))
    (tmp_path / "none.ckpt").write_bytes(b"")

    for name, message in (("twice", "w occurs twice"), ("shape", r"w: 3 bytes for I8 \[4\]"), ("none", "empty file")):
        with pytest.raises(InvalidCheckpointError, match=message):
            read_mindspore_file(tmp_path / f"{name}.ckpt")


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_never_crash_the_reader(tmp_path, seed):
    generator = np.random.default_rng(seed)
    for size in (1, 7, 40, 300):
        (tmp_path / "r.ckpt").write_bytes(generator.bytes(size))
        with pytest.raises((InvalidCheckpointError, ValuesError)):
            read_mindspore_file(tmp_path / "r.ckpt")
