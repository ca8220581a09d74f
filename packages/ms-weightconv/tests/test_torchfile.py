import json
import struct
import tracemalloc
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torchzips as tz
from ms_weightconv import convert, prove
from ms_weightconv.errors import SourceError
from ms_weightconv.torchfile import read_torch_file
from ms_weightconv.torchpickle import DTYPES, STORAGES
from ms_weightconv.words import WORD_OF_DTYPE


def test_a_bin_file_gives_what_the_safetensors_file_gives(folders):
    source = folders.huggingface("llama")
    tensors = folders.read(source)
    other = folders.root / "bin"
    other.mkdir()
    (other / "config.json").write_bytes((source / "config.json").read_bytes())
    tz.write_state(other / "pytorch_model.bin", tensors)

    convert(source, folders.root / "a", to="mindspore", progress=False)
    convert(other, folders.root / "b", to="mindspore", progress=False)

    folders.assert_same(folders.root / "a", folders.root / "b")
    prove(other, folders.root / "b", progress=False)


def test_bins_in_shards_are_read_by_their_index(folders):
    source = folders.huggingface("qwen3", dtype="BF16")
    tensors = folders.read(source)
    other, half = folders.root / "bin", len(tensors) // 2
    other.mkdir()
    (other / "config.json").write_bytes((source / "config.json").read_bytes())
    weight_map = {}
    for number, part in enumerate((list(tensors)[:half], list(tensors)[half:]), 1):
        file = f"pytorch_model-{number:05d}-of-00002.bin"
        tz.write_state(other / file, {key: tensors[key] for key in part})
        weight_map |= dict.fromkeys(part, file)
    (other / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))

    convert(other, folders.root / "back", to="huggingface", progress=False)

    folders.assert_same(source, folders.root / "back")


def test_strides_offsets_shared_storage_and_bfloat16_are_honoured(tmp_path):
    words = np.arange(24, dtype="<u2")
    items = {
        "whole": tz.tensor("BFloat16Storage", "0", 24, (4, 6)),
        "turned": tz.tensor("BFloat16Storage", "0", 24, (6, 4), (1, 6)),
        "part": tz.tensor("BFloat16Storage", "0", 24, (2, 2), (6, 1), 7),
        "scalar": tz.tensor("BFloat16Storage", "0", 24, (), (), 5),
        "none": tz.tensor("BFloat16Storage", "0", 24, (0, 3)),
        "parameter": tz.call(
            tz.name("torch._utils", "_rebuild_parameter"),
            tz.tensor("BFloat16Storage", "0", 24, (24,)),
            b"\x88",
            tz.ORDERED,
        ),
    }
    path = tz.write_zip(tmp_path / "x.bin", tz.pickled(tz.state(items)), {"0": words.tobytes()})

    found = read_torch_file(path)

    square = words.reshape(4, 6)
    assert {key: tensor.dtype for key, tensor in found.items()} == dict.fromkeys(items, "BF16")
    assert np.array_equal(found["whole"].read(), square)
    assert np.array_equal(found["turned"].read(), square.T)
    assert np.array_equal(found["part"].read(), square[1:3, 1:3])
    assert found["scalar"].read() == 5
    assert found["none"].read().shape == (0, 3)
    assert np.array_equal(found["parameter"].read(), words)


def test_untyped_storages_with_a_dtype_of_their_own_are_read(tmp_path):
    content = tz.call(
        tz.name("torch._utils", "_rebuild_tensor_v3"),
        tz.storage("UntypedStorage", "0", 6),
        tz.number(0), tz.group(tz.number(6)), tz.group(tz.number(1)), b"\x89", tz.ORDERED,
        tz.name("torch", "float8_e4m3fn"),
    )  # fmt: skip
    path = tz.write_zip(tmp_path / "x.bin", tz.pickled(tz.state({"a": content})), {"0": bytes(range(6))})

    found = read_torch_file(path)["a"]

    assert (found.dtype, found.read().tolist()) == ("F8_E4M3", list(range(6)))
    assert {*STORAGES.values(), *DTYPES.values()} <= set(WORD_OF_DTYPE)


def test_a_state_dict_inside_a_training_state_is_found(tmp_path):
    inner = tz.state({"a": tz.tensor("FloatStorage", "0", 2, (2,))})
    outer = b"}(" + tz.text("epoch") + tz.number(3) + tz.text("state_dict") + inner + b"u"
    path = tz.write_zip(tmp_path / "x.bin", tz.pickled(outer), {"0": bytes(8)})

    assert list(read_torch_file(path)) == ["a"]


GOOD = tz.tensor("FloatStorage", "0", 6, (2, 3))
EVIL = "touch EXECUTED"
HOSTILE = {
    "os.system": (tz.call(tz.name("os", "system"), tz.text(EVIL)), "'os.system'"),
    "posix.system": (tz.call(tz.name("posix", "system"), tz.text(EVIL)), "'posix.system'"),
    "builtins.eval": (tz.call(tz.name("builtins", "eval"), tz.text(EVIL)), "'builtins.eval'"),
    "builtins.exec": (tz.call(tz.name("builtins", "exec"), tz.text(EVIL)), "'builtins.exec'"),
    "builtins.getattr": (tz.call(tz.name("builtins", "getattr"), tz.text("a"), tz.text("b")), "'builtins.getattr'"),
    "subprocess.Popen": (tz.call(tz.name("subprocess", "Popen"), tz.text(EVIL)), r"'subprocess\.Popen'"),
    "runpy": (tz.call(tz.name("runpy", "_run_code"), tz.text(EVIL)), "'runpy._run_code'"),
    "pip.main": (tz.call(tz.name("pip", "main"), b"]"), "'pip.main'"),
    "webbrowser": (tz.call(tz.name("webbrowser", "open"), tz.text("http://x")), "'webbrowser.open'"),
    "torch.load": (tz.call(tz.name("torch", "load"), tz.text("other.bin")), "'torch.load'"),
    "torch.hub": (tz.call(tz.name("torch.hub", "load"), tz.text("x")), r"'torch\.hub\.load'"),
    "numpy object": (tz.call(tz.name("numpy.core.multiarray", "_reconstruct"), tz.text("x")), "_reconstruct"),
    "copyreg": (tz.call(tz.name("copyreg", "_reconstructor"), tz.text("x")), "'copyreg._reconstructor'"),
    "dotted attribute": (tz.call(tz.name("collections", "OrderedDict.fromkeys"), b"]"), "fromkeys"),
    "name from the stack": (
        tz.text("os") + tz.text("system") + b"\x93" + tz.group(tz.text(EVIL)) + b"R",
        "'os.system'",
    ),
    "instance opcode": (b"(" + tz.text(EVIL) + b"ios\nsystem\n", "opcode b'i'"),
    "object opcode": (b"(" + tz.name("collections", "OrderedDict") + b"o", "opcode b'o'"),
    "new object": (tz.name("collections", "OrderedDict") + b")\x81", "opcode"),
    "extension registry": (b"\x82\x01", "opcode"),
    "call of data": (tz.text("x") + b")R", "a call of 'x'"),
    "call of a tensor": (GOOD + b")R", "a call of"),
    "call of a dtype": (tz.name("torch", "float32") + b")R", "a call of"),
    "state of a tensor": (GOOD + b"}b", "a state set on something"),
    "state that is no dict": (tz.ORDERED + GOOD + b"b", "a state set on something"),
    "memo beyond memory": (b"Nr\xff\xff\xff\xffj\xfe\xff\xff\xff", "KeyError"),
    "text beyond the file": (b"X\xff\xff\xff\x7f", "a text of"),
    "long text": (b"\x8d" + struct.pack("<Q", 1 << 40), "a text of"),
    "huge whole number": (b"\x8a\xff" + bytes(255), "a whole number of 255 bytes"),
    "old huge number": (b"\x8b" + struct.pack("<i", 1 << 30), "opcode"),
    "mark that is not there": (b"t", "without the mark"),
    "nested beyond printing": (b"]" + b"\x94h\x00\x86" + b"\x94h\x01\x86" * 40 + b")R", "a call of"),
    "key that is a tuple": (b"}" + b")Ns", "a key of type tuple"),
    "strange persistent object": (tz.group(tz.text("module"), tz.text("x")) + b"Q", "no storage"),
    "negative shape": (tz.tensor("FloatStorage", "0", 6, (-2, 3)), "a tensor of shape"),
    "shape beyond the storage": (tz.tensor("FloatStorage", "0", 6, (2, 4)), "reach beyond"),
    "offset beyond the storage": (tz.tensor("FloatStorage", "0", 6, (2, 3), None, 1), "reach beyond"),
    "strides beyond the storage": (tz.tensor("FloatStorage", "0", 6, (2, 3), (1 << 40, 1)), "reach beyond"),
    "a terabyte out of four bytes": (tz.tensor("FloatStorage", "0", 6, (1 << 38,), (0,)), "a repeated view"),
    "storage that is not there": (tz.tensor("FloatStorage", "../../etc/passwd", 6, (2, 3)), "is not in the file"),
    "storage of another size": (tz.tensor("FloatStorage", "0", 7, (2, 3)), "has 24 bytes"),
    "quantized tensor": (tz.call(tz.name("torch._utils", "_rebuild_qtensor"), b"N"), "_rebuild_qtensor"),
    "tensor with too few arguments": (tz.call(tz.name("torch._utils", "_rebuild_tensor_v2"), b"N"), "1 arguments"),
    "tensor out of a number": (
        tz.call(tz.name("torch._utils", "_rebuild_tensor_v2"), *[tz.number(1)] * 6),
        "without a storage",
    ),
    "number for a tensor": (tz.number(7), "expected a state dict of tensors only"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_pickle_is_refused_without_running_or_reserving_anything(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    content, expected = HOSTILE[kind]
    path = tz.write_zip(tmp_path / "x.bin", tz.pickled(tz.state({"a": GOOD, "b": content})), {"0": bytes(24)})

    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match=expected) as error:
            read_torch_file(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert str(path) in str(error.value)
    assert len(str(error.value)) < 1000
    assert peak < 4_000_000
    assert not (tmp_path / "EXECUTED").exists()


def test_there_are_thirty_kinds_of_hostile_pickles_and_the_good_one_is_read(tmp_path):
    path = tz.write_zip(tmp_path / "x.bin", tz.pickled(tz.state({"a": GOOD})), {"0": bytes(24)})

    assert len(HOSTILE) >= 30
    assert read_torch_file(path)["a"].shape == (2, 3)


def test_a_pickle_cut_short_anywhere_is_refused(tmp_path):
    whole = tz.pickled(tz.state({"a": GOOD}))

    for end in range(len(whole)):
        path = tz.write_zip(tmp_path / f"{end}.bin", whole[:end], {"0": bytes(24)})
        with pytest.raises(SourceError):
            read_torch_file(path)


def test_a_flipped_byte_of_the_pickle_gives_tensors_or_a_named_refusal(tmp_path):
    whole = tz.pickled(tz.state({"a": GOOD}))
    rng = np.random.default_rng(1)

    for _ in range(300):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] = rng.integers(256)
        path = tz.write_zip(tmp_path / "x.bin", bytes(changed), {"0": bytes(24)})
        with suppress(SourceError):
            for tensor in read_torch_file(path).values():
                tensor.read()


def test_zip_bombs_and_broken_zips_are_refused(tmp_path):
    good = tz.pickled(tz.state({"a": GOOD}))
    bomb = tz.write_zip(tmp_path / "a.bin", good, {"0": bytes(1 << 24)}, compression=zipfile.ZIP_DEFLATED)
    script = tz.write_zip(tmp_path / "b.bin", good, {"0": bytes(24)}, archive__code____torch__="x")
    other = tz.write_zip(tmp_path / "c.bin", good, {"0": bytes(24)}, elsewhere__file=b"x")
    big = tz.write_zip(tmp_path / "d.bin", good, {"0": bytes(24)}, byteorder=b"big")
    no_pickle = tmp_path / "e.bin"
    with zipfile.ZipFile(no_pickle, "w") as archive:
        archive.writestr("archive/version", "3")
    cut = tmp_path / "f.bin"
    cut.write_bytes(tz.write_zip(tmp_path / "g.bin", good, {"0": bytes(24)}).read_bytes()[:-30])
    old = tmp_path / "h.bin"
    old.write_bytes(b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.")
    overlap = tmp_path / "i.bin"
    data = bytearray(tz.write_zip(tmp_path / "j.bin", good, {"0": bytes(24)}).read_bytes())
    at = data.rindex(b"archive/data/0") - 4
    data[at : at + 4] = struct.pack("<I", 0)  # the central directory says that the data lie where the pickle lies
    overlap.write_bytes(data)

    for path, expected in (
        (bomb, "is compressed"),
        (script, "TorchScript"),
        (other, "several folders"),
        (big, "other byte order"),
        (no_pickle, "without archive/data.pkl"),
        (cut, "damaged zip"),
        (old, "before torch 1.6"),
        (overlap, "overlaps"),
    ):
        with pytest.raises(SourceError, match=expected):
            read_torch_file(path)
