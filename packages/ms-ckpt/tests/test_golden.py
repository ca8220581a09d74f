"""Both sides against the contract's golden checkpoint, which neither of them wrote."""

import json

import numpy as np
import pytest
from ms_ckpt import CheckpointStore, InvalidCheckpointError, RawTensor
from ms_ckpt.tensor import NUMPY_DTYPES, RAW_DTYPES


@pytest.fixture
def expected(contract):
    return json.loads((contract / "golden" / "expected.json").read_text())


@pytest.fixture
def golden(contract):
    return CheckpointStore(contract / "golden" / "v1")


def rebuild(entry):
    words = np.frombuffer(bytes.fromhex(entry["hex"]), NUMPY_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return RawTensor(entry["dtype"], words) if entry["dtype"] in RAW_DTYPES else words


def test_reader_assembles_the_golden_checkpoint_from_two_rank_files(golden, expected, words_of):
    loaded = golden.load()

    assert loaded.step == expected["step"]
    assert loaded.tensors.keys() == expected["tensors"].keys()
    for name, entry in expected["tensors"].items():
        assert words_of(loaded.tensors[name]) == words_of(rebuild(entry)), name
    assert loaded.values == expected["values"]
    assert [value.hex() for value in loaded.values["floats"]] == expected["floats_as_hex"]


@pytest.mark.parametrize("rows", [(0, 5), (0, 2), (1, 4), (3, 5), (2, 2)])
@pytest.mark.parametrize("columns", [(0, 4), (1, 3), (2, 4)])
def test_any_slice_across_chunks_equals_that_of_the_whole_tensor(golden, expected, rows, columns):
    for name in ("model.embedding.weight", "optimizer.exp_avg.embedding.weight"):
        whole = rebuild(expected["tensors"][name])
        with golden.open(3) as folder:
            part = folder.read_slice(name, [slice(*rows), slice(*columns)])
        np.testing.assert_array_equal(part, whole[slice(*rows), slice(*columns)])


def test_writer_given_the_golden_content_gives_each_tensor_the_golden_checksum(tmp_path, golden, expected):
    store = CheckpointStore(tmp_path)
    tensors = {name: rebuild(entry) for name, entry in expected["tensors"].items()}
    store.save(expected["step"], tensors, expected["values"])

    with golden.open(3) as theirs, store.open(3) as ours:
        assert ours.index.tensors.keys() == theirs.index.tensors.keys()
        for name, tensor in theirs.index.tensors.items():
            mine = ours.index.tensors[name]
            assert (mine.dtype, mine.shape) == (tensor.dtype, tensor.shape)
            if len(tensor.chunks) == 1:
                assert mine.chunks[0].checksum == tensor.chunks[0].checksum
                assert mine.chunks[0].key == tensor.chunks[0].key
        assert ours.values == theirs.values


def edit(tmp_path, golden, change):
    """A copy of the golden checkpoint whose index.json went through `change` and whose COMMIT vouches for it."""
    import hashlib
    import shutil

    folder = tmp_path / "step-00000003"
    shutil.copytree(golden.root / folder.name, folder)
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))
    lines = [
        f"sha256:{hashlib.sha256((folder / name).read_bytes()).hexdigest()} {name}\n"
        for name in ("index.json", "state.json")
    ]
    (folder / "COMMIT").write_text("ms-ckpt.commit 1\n" + "".join(lines))
    return CheckpointStore(tmp_path)


def chunk(index, number=0):
    return index["tensors"]["model.embedding.weight"]["chunks"][number]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.update(version=2), "format 'ms-ckpt.index' version 2; this reader knows"),
        (lambda index: index.update(format="other"), "format 'other' version 1"),
        (lambda index: index.update(more=1), r"expected the keys .* found .*more"),
        (lambda index: chunk(index).update(shape=[2, 4]), "its chunks leave a gap"),
        (lambda index: chunk(index, 1).update(offset=[2, 0]), "its chunks overlap|gap"),
        (lambda index: chunk(index, 1).update(offset=[4, 0]), "leaves the tensor's shape"),
        (lambda index: chunk(index).update(file="../x.safetensors"), "is not in `files`"),
        (lambda index: chunk(index).update(checksum="crc32:00000000"), "checksum is crc32:8ed01fea"),
        (lambda index: chunk(index).update(key="model.norm.weight"), "is used twice"),
        (lambda index: index["files"].update({"../a": {}}), "expected a name like rank-00000.safetensors"),
        (lambda index: index["tensors"]["other.mask"].update(dtype="I8"), "header says"),
        (lambda index: index["tensors"].pop("other.mask"), "header and index name different tensors: other.mask"),
        (lambda index: index["tensors"]["other.mask"].update(shape=[True]), "expected a whole number"),
    ],
)
def test_index_that_contradicts_itself_or_its_files_is_refused(tmp_path, golden, change, message):
    store = edit(tmp_path, golden, change)

    with pytest.raises(InvalidCheckpointError, match=message):
        store.load(3)


def test_unchanged_copy_passes_the_same_gate(tmp_path, golden):
    assert edit(tmp_path, golden, lambda index: None).load(3).step == 3


def test_document_with_a_repeated_key_or_nan_is_refused():
    from ms_ckpt.document import from_bytes

    for text in (b'{"format": "f", "format": "f", "version": 1}', b'{"format": "f", "version": 1, "a": NaN}', b"\xff"):
        with pytest.raises(InvalidCheckpointError, match="not strict JSON"):
            from_bytes(text, "state.json", format_name="f")
