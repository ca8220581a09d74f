import json
import logging
import shutil

import jsonschema
import numpy as np
import pytest
from ms_ckpt import (
    CheckpointConfig,
    CheckpointStore,
    InvalidCheckpointError,
    MismatchError,
    RawTensor,
    StepExistsError,
    ValuesError,
)
from safetensors.numpy import load_file


def test_what_is_saved_comes_back_to_the_last_bit(tmp_path, tensors, values, words_of):
    CheckpointStore(tmp_path).save(12, tensors, values)

    loaded = CheckpointStore(tmp_path).load()

    assert loaded.step == 12
    assert loaded.values == values
    assert type(loaded.values["loss_scale"]) is float
    assert {name: words_of(tensor) for name, tensor in loaded.tensors.items()} == {
        name: words_of(tensor) for name, tensor in tensors.items()
    }
    assert loaded.tensors["model.lm_head.weight"].dtype == "BF16"


def test_loaded_arrays_can_be_written_to(tmp_path, tensors, values):
    CheckpointStore(tmp_path).save(1, tensors, values)

    loaded = CheckpointStore(tmp_path).load()

    loaded.tensors["model.embedding.weight"][...] = 0
    loaded.tensors["optimizer.step"][...] = 3


def test_non_contiguous_and_big_endian_arrays_are_stored_by_value(tmp_path):
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    given = {"t": matrix.T, "s": matrix[::2, ::-3], "b": matrix.astype(">f4"), "f": np.asfortranarray(matrix)}

    CheckpointStore(tmp_path).save(1, given, {})

    loaded = CheckpointStore(tmp_path).load().tensors
    for name, array in given.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_files_are_what_the_safetensors_library_reads(tmp_path, tensors, values):
    del tensors["model.lm_head.weight"], tensors["extra.fp8"]  # types that safetensors.numpy lacks
    folder = CheckpointStore(tmp_path).save(1, tensors, values)

    read = load_file(folder / "rank-00000.safetensors")

    assert read.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(read[name], array)


def test_written_documents_obey_the_schemas(tmp_path, tensors, values, contract):
    folder = CheckpointStore(tmp_path).save(1, tensors, values)

    for name in ("index", "state"):
        schema = json.loads((contract / f"{name}.schema.json").read_text())
        jsonschema.validate(json.loads((folder / f"{name}.json").read_text()), schema)
    assert sorted(path.name for path in folder.iterdir()) == [
        "COMMIT",
        "index.json",
        "rank-00000.safetensors",
        "state.json",
    ]


def test_newest_step_is_loaded_and_an_older_one_on_request(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in (5, 100_000_000, 20):
        store.save(step, {"a": np.array([step])}, {"step": step})

    assert store.steps() == [5, 20, 100_000_000]
    assert store.load().step == 100_000_000
    assert store.load(5).tensors["a"] == [5]


def test_empty_root_loads_nothing_and_a_missing_step_is_an_error(tmp_path):
    store = CheckpointStore(tmp_path / "none")

    assert store.load() is None
    assert store.steps() == []
    with pytest.raises(InvalidCheckpointError, match="step-00000003: COMMIT: missing"):
        store.load(3)


def test_damaged_newest_is_skipped_with_one_line_that_says_why(tmp_path, caplog):
    store = CheckpointStore(tmp_path)
    for step in (1, 2, 3):
        store.save(step, {"a": np.array([step])}, {})
    (tmp_path / "step-00000003" / "COMMIT").unlink()
    path = tmp_path / "step-00000002" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")

    with caplog.at_level(logging.WARNING):
        loaded = store.load()

    assert loaded.step == 1
    assert len(caplog.records) == 2
    assert "step-00000003: COMMIT: missing" in caplog.records[0].getMessage()
    assert "step-00000002: rank-00000.safetensors: tensor a: checksum is" in caplog.records[1].getMessage()
    with pytest.raises(InvalidCheckpointError, match="checksum"):
        store.load(2)


def test_a_run_never_starts_anew_silently_when_every_checkpoint_is_damaged(tmp_path):
    store = CheckpointStore(tmp_path)
    folder = store.save(1, {"a": np.zeros(3)}, {})
    (folder / "state.json").unlink()

    with pytest.raises(InvalidCheckpointError, match=r"none of its checkpoints is valid:\n.*state.json: missing"):
        store.load()


def test_all_differences_from_what_is_expected_stand_in_one_error(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": np.zeros((2, 3), np.float32), "b": np.zeros(3), "c": np.zeros(3, np.int32)}, {})

    with pytest.raises(MismatchError) as caught:
        store.load(expected={"a": ("F32", (3, 2)), "c": (np.int64, [3]), "d": ("BF16", ())})

    assert str(caught.value).splitlines()[1:] == [
        "  a: shape [2, 3], expected [3, 2]",
        "  b: unexpected",
        "  c: dtype I32, expected I64",
        "  d: missing",
    ]


def test_expected_names_dtypes_and_shapes_pass(tmp_path, tensors, values):
    CheckpointStore(tmp_path).save(1, tensors, values)

    expected = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}

    assert CheckpointStore(tmp_path).load(expected=expected).step == 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"a": {"b": [1, float("nan")]}}, r"values\.a\.b\[1\]: nan"),
        ({"a": float("inf")}, r"values\.a: inf"),
        ({"a": np.float32(1)}, r"values\.a: float32"),
        ({"a": np.float64(1)}, r"values\.a: float64"),
        ({"a": (1, 2)}, r"values\.a: tuple"),
        ({"a": {1: 2}}, r"values\.a: key 1 is int"),
        ({"a": b"x"}, r"values\.a: bytes"),
    ],
)
def test_values_that_would_not_come_back_exactly_are_refused_by_path(tmp_path, bad, message):
    with pytest.raises(ValuesError, match=message):
        CheckpointStore(tmp_path).save(1, {"a": np.zeros(1)}, bad)

    assert list(tmp_path.iterdir()) == []


def test_values_that_contain_themselves_are_refused(tmp_path):
    values = {"a": []}
    values["a"].append(values)

    with pytest.raises(ValuesError, match=r"values\.a\[0\]\.a: refers to an object that contains it"):
        CheckpointStore(tmp_path).save(1, {}, values)


@pytest.mark.parametrize("tensor", [np.array(["a"]), np.zeros(2, np.complex64), [1.0], np.array([None])])
def test_tensors_that_cannot_be_stored_are_refused_by_name(tmp_path, tensor):
    with pytest.raises(ValuesError, match=r"model\.x"):
        CheckpointStore(tmp_path).save(1, {"model.x": tensor}, {})

    assert list(tmp_path.iterdir()) == []


def test_valid_step_is_not_overwritten_unless_asked(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": np.zeros(3)}, {})

    with pytest.raises(StepExistsError, match="step 1 is already saved"):
        store.save(1, {"a": np.ones(3)}, {})
    assert store.load().tensors["a"][0] == 0

    store.save(1, {"a": np.ones(3)}, {}, replace=True)
    assert store.load().tensors["a"][0] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_damaged_step_is_replaced_without_asking(tmp_path):
    store = CheckpointStore(tmp_path)
    folder = store.save(1, {"a": np.zeros(3)}, {})
    (folder / "COMMIT").write_bytes(b"")

    store.save(1, {"a": np.ones(3)}, {})

    assert store.load(1).tensors["a"][0] == 1


def test_retention_keeps_the_last_ones_and_every_mth_across_runs(tmp_path):
    for first in (1, 5):  # two runs, each with a store of its own
        store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=2, keep_every=4))
        for step in range(first, first + 4):
            store.save(step, {"a": np.array([step])}, {})

    assert store.steps() == [4, 7, 8]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000007", "step-00000008"]


def test_retention_counts_no_damaged_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=2))
    for step in (1, 2):
        store.save(step, {"a": np.array([step])}, {})
    (tmp_path / "step-00000002" / "state.json").write_text("{}")

    store.save(3, {"a": np.array([3])}, {})

    assert store.steps() == [1, 3]
    assert (tmp_path / "step-00000002").exists()


def test_retention_never_deletes_what_was_just_saved(tmp_path):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=1))
    store.save(10, {"a": np.array([1])}, {})

    store.save(5, {"a": np.array([1])}, {})

    assert store.steps() == [5, 10]


def test_zero_keep_last_keeps_all(tmp_path):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))
    for step in range(6):
        store.save(step, {}, {})

    assert store.steps() == [0, 1, 2, 3, 4, 5]


def test_prune_reads_every_byte_before_it_counts_a_checkpoint(tmp_path):
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(step, {"a": np.array([step])}, {})
    path = tmp_path / "step-00000002" / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    strict = CheckpointStore(tmp_path, CheckpointConfig(keep_last=1))

    assert strict.prune() == []
    assert store.load(1).step == 1


def test_arrays_may_change_right_after_save(tmp_path):
    array = np.zeros(3)
    CheckpointStore(tmp_path).save(1, {"a": array}, {})
    array[:] = 9

    assert CheckpointStore(tmp_path).load().tensors["a"].tolist() == [0, 0, 0]


def test_copied_checkpoint_under_another_step_is_refused(tmp_path):
    folder = CheckpointStore(tmp_path).save(1, {}, {})
    shutil.copytree(folder, tmp_path / "step-00000002")

    with pytest.raises(InvalidCheckpointError, match=r"step 1 in index\.json"):
        CheckpointStore(tmp_path).load(2)


def test_raw_words_need_the_right_width():
    with pytest.raises(ValuesError, match="expected words of uint16, found uint8"):
        RawTensor("BF16", np.zeros(3, np.uint8))
