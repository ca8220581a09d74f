import json
import struct

import numpy as np
import pytest
from ms_weightconv.errors import SourceError, TargetError
from ms_weightconv.tensorfile import Tensor, blocks, read_tensor_file, write_tensor_file


def write(path, header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if size is None else size) + text + data)
    return path


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE = {
    "header of 2 GB announced": (b"{}", b"", 2 << 30, "header of 2147483648 bytes announced in a file of"),
    "header length of all ones": (b"{}", b"", (1 << 64) - 1, "cut short"),
    "no object": (b"[1, 2]", b"", None, "does not begin with"),
    "not json": (b"{nonsense}", b"", None, "not valid JSON"),
    "not utf-8": (b'{"\xff": 1}', b"", None, "not valid JSON"),
    "deep nesting": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"", None, "not valid JSON"),
    "NaN": (b'{"a": NaN}', b"", None, "found NaN"),
    "same key twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"xx", None, "key given more than once: a",
    ),
    "overlap": ({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, b"x" * 12, None, "b overlaps"),
    "same bytes": ({"a": entry([2], 0, 8), "b": entry([2], 0, 8)}, b"x" * 8, None, "b overlaps"),
    "hole": ({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"x" * 12, None, "b leaves a hole"),
    "beyond the end": ({"a": entry([3], 0, 12)}, b"x" * 8, None, "a ends at byte 12 of the data, but the file holds 8"),
    "bytes of none": ({"a": entry([1], 0, 4)}, b"x" * 8, None, "4 bytes behind the last tensor"),
    "negative offset": ({"a": entry([1], -4, 0)}, b"x" * 4, None, "expected whole numbers"),
    "offsets turned": ({"a": entry([1], 4, 0)}, b"x" * 4, None, "does not fill bytes 4 to 0"),
    "huge shape": ({"a": entry([1 << 40, 1 << 40], 0, 4)}, b"x" * 4, None, "does not fill"),
    "shape that wraps to its size": ({"a": entry([1 << 63, 2], 0, 0)}, b"", None, "expected whole numbers"),
    "fraction": ({"a": entry([1.0], 0, 4)}, b"x" * 4, None, "expected whole numbers"),
    "boolean": ({"a": entry([True], 0, 4)}, b"x" * 4, None, "expected whole numbers"),
    "unknown dtype": ({"a": entry([1], 0, 4, "F7")}, b"x" * 4, None, "has dtype 'F7', expected one of F64"),
    "dtype of another kind": ({"a": entry([1], 0, 4, ["F32"])}, b"x" * 4, None, "has dtype"),
    "missing field": ({"a": {"dtype": "F32", "shape": [1]}}, b"x" * 4, None, "a must have exactly"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", None, "__metadata__ must map"),
    "forty axes": ({"a": entry([1] * 40, 0, 4)}, b"x" * 4, None, "a has shape"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_header_is_refused_by_name(tmp_path, kind):
    header, data, size, text = HOSTILE[kind]

    with pytest.raises(SourceError, match=text) as error:
        read_tensor_file(write(tmp_path / "model.safetensors", header, data, size))
    assert "model.safetensors" in str(error.value)


def test_a_header_above_the_formats_limit_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:  # sparse: 200 MB of announced header, none of it on the disk
        file.write(struct.pack("<Q", 200_000_000) + b"{")
        file.truncate(200_000_100)

    with pytest.raises(SourceError, match="header of 200000000 bytes; the format allows 100000000"):
        read_tensor_file(path)


def test_a_lfs_pointer_is_named_as_one(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "a" * 64 + "\nsize 4999\n")

    with pytest.raises(SourceError, match="Git LFS pointer of 12"):
        read_tensor_file(path)


@pytest.mark.parametrize("size", [0, 5, 8, 30])
def test_a_file_cut_short_anywhere_is_refused(tmp_path, size):
    path = write(tmp_path / "model.safetensors", {"a": entry([2], 0, 8)}, b"x" * 8)
    path.write_bytes(path.read_bytes()[:size])

    with pytest.raises(SourceError, match=r"cut short|no header"):
        read_tensor_file(path)


def test_an_empty_file_of_no_tensors_and_a_tensor_of_no_elements_are_read(tmp_path):
    assert read_tensor_file(write(tmp_path / "none.safetensors", {})) == {}

    tensors = read_tensor_file(write(tmp_path / "empty.safetensors", {"a": entry([0, 4], 0, 0)}))
    assert tensors["a"].read().shape == (0, 4)


def test_written_files_are_aligned_and_come_back(tmp_path, folders):
    words = np.arange(24, dtype="<u4").reshape(4, 6)
    tensors = {
        "half": Tensor("F16", (3,), lambda: np.arange(3, dtype="<u2")),
        "transposed": Tensor("F32", (6, 4), lambda: words.T),
        "scalar": Tensor("F32", (), lambda: np.array(7, "<u4")),
        "wide": Tensor("F64", (2,), lambda: np.arange(2, dtype="<u8")),
    }

    list(write_tensor_file(tmp_path / "model.safetensors", tensors, {"format": "pt"}))

    back = folders.read(tmp_path)
    assert np.array_equal(back["transposed"][1], words.T)
    assert back["scalar"][1] == 7
    content = (tmp_path / "model.safetensors").read_bytes()
    header_bytes = struct.unpack("<Q", content[:8])[0]
    offsets = {k: v["data_offsets"][0] for k, v in json.loads(content[8 : 8 + header_bytes]).items() if k[0] != "_"}
    assert header_bytes % 8 == 0
    assert offsets == {"wide": 0, "transposed": 16, "scalar": 112, "half": 116}


def test_a_transposed_view_is_written_in_blocks_equal_to_its_copy():
    words = np.arange(3000 * 1500, dtype="<u4").reshape(3000, 1500)

    parts = [bytes(block) for block in blocks(words.T)]

    assert len(parts) > 1
    assert b"".join(parts) == words.T.tobytes()


def test_a_tensor_that_is_not_what_it_announced_is_refused(tmp_path):
    tensors = {"a": Tensor("F32", (2,), lambda: np.zeros(3, "<u4"))}

    with pytest.raises(TargetError, match="a: expected F32"):
        list(write_tensor_file(tmp_path / "model.safetensors", tensors, {}))


@pytest.mark.parametrize("shape", [(700, 300), (300, 70), (5, 600, 130), (1, 1), (3, 0)])
def test_transposed_views_give_their_bytes_in_order_whatever_the_tile(monkeypatch, shape):
    monkeypatch.setattr("ms_weightconv.tensor.BLOCK_BYTES", 100_000)
    array = np.random.default_rng(0).integers(0, 2**32, shape, dtype="<u4").swapaxes(-1, -2)

    assert b"".join(bytes(block) for block in blocks(array)) == np.ascontiguousarray(array).tobytes()
