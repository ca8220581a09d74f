import json
import zlib
from contextlib import suppress

import numpy as np
import pytest
from ms_weightconv import convert
from ms_weightconv.ckptfile import read_ckpt_file, write_ckpt_file
from ms_weightconv.errors import SourceError, TargetError
from ms_weightconv.tensor import Tensor

# As mindspore.save_checkpoint 2.10 wrote it: float32 [2, 3], bfloat16 [2], a scalar, and a text of append_dict.
WRITTEN = (
    b"\n3\n\x08a.weight\x12'\x08\x02\x08\x03\x12\x07Float32\x1a\x18\x00\x00\x00\x00\x00\x00\x80?\x00\x00\x00@\x00\x00@@"
    b"\x00\x00\x80@\x00\x00\xa0@\n\x17\n\x01c\x12\x12\x08\x02\x12\x08BFloat16\x1a\x04\xc0?\x00\xc0"
    b"\n\x14\n\x01s\x12\x0f\x12\x07Float32\x1a\x04\x00\x00@@"
    b"\n\x1d\n\x04name\x12\x15\x08\x00\x12\x03str\x1a\x0cs\x00\x00\x00t\x00\x00\x00r\x00\x00\x00"
)


def tensors_of(arrays):
    kinds = {"<f4": "F32", "<f2": "F16", "<i8": "I64"}
    return {
        name: Tensor(kinds[array.dtype.str], array.shape, lambda a=array: a.view(f"<u{a.dtype.itemsize}"))
        for name, array in arrays.items()
    }


def test_a_file_of_mindspore_is_read(tmp_path):
    path = tmp_path / "x.ckpt"
    path.write_bytes(WRITTEN)

    tensors, texts = read_ckpt_file(path)

    assert {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()} == {
        "a.weight": ("F32", (2, 3)), "c": ("BF16", (2,)), "s": ("F32", ()),
    }  # fmt: skip
    assert tensors["a.weight"].read().view("<f4").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["c"].read().tolist() == [0x3FC0, 0xC000]
    assert texts == ["name"]


def test_what_is_written_is_read_back_with_its_checksum(tmp_path, monkeypatch):
    monkeypatch.setattr("ms_weightconv.ckptfile._SLICE_BYTES", 40)
    arrays = {
        "a": np.arange(60, dtype="<f4").reshape(10, 6), "turned": np.arange(30, dtype="<f4").reshape(5, 6).T,
        "b": np.arange(3, dtype="<f2"), "n": np.zeros((0, 4), "<f4"), "i": np.arange(4, dtype="<i8"),
    }  # fmt: skip
    path = tmp_path / "x.ckpt"

    written = {name: crc for name, _, crc in write_ckpt_file(path, tensors_of(arrays))}
    found, _ = read_ckpt_file(path)

    assert path.read_bytes().count(b"\x01a\x12") == 6  # slices, as MindSpore cuts large tensors
    for name, array in arrays.items():
        assert np.array_equal(found[name].read().view(array.dtype), array), name
        assert written[name] == zlib.crc32(np.ascontiguousarray(array).tobytes())


def test_every_flipped_byte_of_a_file_with_a_checksum_is_refused(tmp_path):
    path = tmp_path / "x.ckpt"
    list(write_ckpt_file(path, tensors_of({"a": np.arange(6, dtype="<f4")})))
    whole = path.read_bytes()

    for at in range(len(whole) - 17):
        changed = bytearray(whole)
        changed[at] ^= 1
        path.write_bytes(changed)
        with pytest.raises(SourceError, match="checksum"):
            read_ckpt_file(path)


def test_damaged_and_hostile_files_are_refused_by_name(tmp_path):
    path = tmp_path / "x.ckpt"
    cases = [
        (b"", "0 bytes"),
        (WRITTEN[:30], "cut short"),
        (b"\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + WRITTEN, "cut short"),
        (b"\n" + b"\xff" * 12, "does not end"),
        (b"\x12\x02aaaa", "field 2"),
        (b"\n\x03\n\x01a", "without a tensor"),
        (b"\xd8^:\x7f" + bytes(20), "encrypted"),
        (WRITTEN.replace(b"Float32", b"Quint32", 1), "type 'Quint32'"),
        (WRITTEN.replace(b"\x08\x02\x08\x03", b"\x08\x02\x08\x04", 1), r"\[2, 4\], but has 24 bytes"),
        (WRITTEN.replace(b"\x08\x02\x08\x03", b"\x08\xff\x7f\x08", 1), "not a checkpoint"),
        (WRITTEN.replace(b"\x01c\x12", b"\x01s\x12"), "in the file twice"),
        (b"PK\x03\x04" + bytes(30), "not a checkpoint of MindSpore"),
        (b"\n\x10\n\x01m\x1a\x0b" + bytes(11), "map parameter"),
    ]

    for content, expected in cases:
        path.write_bytes(content)
        with pytest.raises(SourceError, match=expected) as error:
            read_ckpt_file(path)
        assert str(path) in str(error.value)


def test_any_flipped_byte_without_a_checksum_gives_tensors_or_a_named_refusal(tmp_path):
    path = tmp_path / "x.ckpt"

    for at in range(len(WRITTEN)):
        for bit in (1, 128):
            changed = bytearray(WRITTEN)
            changed[at] ^= bit
            path.write_bytes(changed)
            with suppress(SourceError):
                for tensor in read_ckpt_file(path)[0].values():
                    tensor.read()


def test_a_dtype_that_mindspore_has_no_name_for_is_refused(tmp_path):
    tensor = Tensor("F8_E4M3", (2,), lambda: np.zeros(2, "|u1"))

    with pytest.raises(TargetError, match=r"a: MindSpore's \.ckpt has no F8_E4M3"):
        list(write_ckpt_file(tmp_path / "x.ckpt", {"a": tensor}))


def test_a_ckpt_with_training_state_is_a_model_folder(folders):
    ours, other = folders.root / "ours", folders.root / "ckpt"
    convert(folders.huggingface("llama"), ours, to="mindspore", progress=False)
    other.mkdir()
    (other / "config.json").write_bytes((ours / "config.json").read_bytes())
    (other / "huggingface.json").write_bytes((ours / "huggingface.json").read_bytes())
    arrays = {name: words.view("<f4") for name, (_, words) in folders.read(ours).items()}
    state = {"moments.norm.weight": arrays["norm.weight"], "global_step": np.zeros(1, "<i8")}
    list(write_ckpt_file(other / "net-1_1.ckpt", tensors_of(arrays | state)))

    report = convert(other, folders.root / "back", to="huggingface", progress=False)
    single = convert(other / "net-1_1.ckpt", folders.root / "again", to="huggingface", progress=False)

    assert report.notes[0] == "left out of the .ckpt, no weights: global_step, moments.norm.weight"
    assert single.num_tensors == report.num_tensors
    folders.assert_same(folders.root / "hf", folders.root / "back")
    folders.assert_same(folders.root / "hf", folders.root / "again")
    assert json.loads((folders.root / "back" / "config.json").read_text())["model_type"] == "llama"
