"""Safetensors of others: the library's files, Hugging Face's folders, and what they look like when they are broken."""

import json
import struct

import numpy as np
import pytest
from ms_ckpt import InvalidCheckpointError, RawTensor, ValuesError
from ms_ckpt.safetensors_file import (
    INDEX_NAME,
    read_safetensors_file,
    read_safetensors_folder,
    write_safetensors_file,
    write_safetensors_folder,
)
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

TENSORS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([1, 2], np.int64),
    "c": np.array(2.5),
}


def pack(header, data=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(start, stop, dtype="I8", shape=None):
    return {"dtype": dtype, "shape": [stop - start] if shape is None else shape, "data_offsets": [start, stop]}


def test_the_library_and_this_package_read_each_other(tmp_path):
    save_file(TENSORS, tmp_path / "theirs.safetensors", metadata={"format": "np", "note": "x"})
    write_safetensors_file(tmp_path / "ours.safetensors", TENSORS, {"note": "y"})

    tensors, metadata = read_safetensors_file(tmp_path / "theirs.safetensors")
    assert metadata == {"format": "np", "note": "x"}
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(tensors[name].read(), array)
        np.testing.assert_array_equal(load_file(tmp_path / "ours.safetensors")[name], array)
    with safe_open(tmp_path / "ours.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "note": "y"}


def test_bfloat16_and_float8_keep_their_words(tmp_path, words_of):
    given = {
        "b": RawTensor("BF16", np.array([0x7FA1, 1], np.uint16)),
        "f": RawTensor("F8_E5M2", np.arange(3, dtype="u1")),
    }
    write_safetensors_file(tmp_path / "a.safetensors", given, {})

    tensors, _ = read_safetensors_file(tmp_path / "a.safetensors")

    assert {name: words_of(lazy.read()) for name, lazy in tensors.items()} == {n: words_of(t) for n, t in given.items()}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "a header of 0 bytes in a file of 0"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
        (struct.pack("<Q", 1 << 40) + b"{}", "a header of 1099511627776 bytes"),
        (struct.pack("<Q", 2) + b"[]", "not a safetensors file"),
        (pack({"a": entry(0, 3)}, b"12"), "tensors cover 3 of 2 bytes"),
        (pack({"a": entry(0, 3)}, b"1234"), "tensors cover 3 of 4 bytes"),
        (pack({"a": entry(1, 3)}, b"123"), "a: begins at byte 1, expected 0"),
        (pack({"a": entry(0, 2), "b": entry(1, 3)}, b"123"), "b: begins at byte 1, expected 2"),
        (pack({"a": entry(0, 3, shape=[2])}, b"123"), r"a: 3 bytes for I8 \[2\]"),
        (pack({"a": entry(0, 3, shape=[-3])}, b"123"), r"a: shape \[-3\]"),
        (pack({"a": {"dtype": "I8"}}, b"123"), "data_offsets"),
        (pack({"a": 3}), "not a safetensors file"),
        (struct.pack("<Q", 12) + b'{"a":1,"a":2}'[:12], "not a safetensors file"),
    ],
)
def test_broken_files_are_refused_with_the_reason(tmp_path, data, message):
    (tmp_path / "x.safetensors").write_bytes(data)

    with pytest.raises(InvalidCheckpointError, match=rf"x\.safetensors: .*{message}"):
        read_safetensors_file(tmp_path / "x.safetensors")


def test_unknown_type_is_refused_by_name(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(pack({"w": entry(0, 3, dtype="F4", shape=[6])}, b"123"))

    with pytest.raises(ValuesError, match=r"types that are not read here: w \(F4\)"):
        read_safetensors_file(tmp_path / "x.safetensors")


@pytest.fixture
def folder(tmp_path):
    write_safetensors_folder(tmp_path, TENSORS, {}, max_shard_bytes=24)
    return tmp_path


def test_folder_is_cut_as_hugging_face_cuts_it(folder):
    names = sorted(path.name for path in folder.iterdir())
    document = json.loads((folder / INDEX_NAME).read_text())

    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", INDEX_NAME]
    assert document["metadata"] == {"total_size": 48}
    assert document["weight_map"] == {"a.weight": names[0], "b": names[1], "c": names[1]}
    tensors, _ = read_safetensors_folder(folder)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(tensors[name].read(), array)


def test_small_folder_is_one_file_without_index(tmp_path):
    write_safetensors_folder(tmp_path, TENSORS, {}, max_shard_bytes=1000)

    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_everything_that_index_and_files_disagree_about_is_listed(folder):
    document = json.loads((folder / INDEX_NAME).read_text())
    document["weight_map"] |= {"d": "model-00002-of-00002.safetensors", "e": "gone.safetensors"}
    del document["weight_map"]["b"]
    (folder / INDEX_NAME).write_text(json.dumps(document))

    with pytest.raises(InvalidCheckpointError) as caught:
        read_safetensors_folder(folder)

    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "gone.safetensors: missing",
        "model-00002-of-00002.safetensors: holds b, which the index does not look for there",
        "model-00002-of-00002.safetensors: holds no d",
    ]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": {"a": 3}}', "{}"]
)
def test_index_that_is_none_is_refused(folder, text):
    (folder / INDEX_NAME).write_text(text)

    with pytest.raises(InvalidCheckpointError, match="not an index"):
        read_safetensors_folder(folder)


def test_file_that_shrinks_before_it_is_read_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    write_safetensors_file(path, TENSORS, {})
    tensors, _ = read_safetensors_file(path)
    path.write_bytes(path.read_bytes()[:-60])

    with pytest.raises(InvalidCheckpointError, match="cut short while it was read"):
        [lazy.read() for lazy in tensors.values()]
