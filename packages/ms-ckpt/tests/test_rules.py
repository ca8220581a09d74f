"""Loads are strict; each exception is asked for in so many words and does no more than it says."""

import numpy as np
import pytest
from ms_ckpt import CheckpointStore, InvalidCheckpointError, LoadRules, MismatchError, RawTensor, ValuesError
from ms_ckpt.tensor import NUMPY_DTYPES


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path)
    tensors = {
        "model.a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model.b.weight": np.array([1.5, 2.5]),
        "optimizer.step": np.array(3, np.int64),
        "optimizer.exp_avg.a.weight": np.full((2, 3), 0.5, np.float32),
    }
    store.save(1, tensors, {"v": 1})
    return store


A = ("F32", (2, 3))


def lines(caught):
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_only_some_tensors_are_loaded_and_the_others_are_not_missed(store):
    loaded = store.load(rules=LoadRules(only=("model.*",)))

    assert sorted(loaded.tensors) == ["model.a.weight", "model.b.weight"]
    assert store.load(expected={"model.a.weight": A}, rules=LoadRules(only=("model.a.*",))).tensors.keys() == {
        "model.a.weight"
    }


def test_only_what_is_taken_needs_to_be_intact(store):
    path = store.root / "step-00000001" / "rank-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # wide dtypes come first in the file, then names count: this is the float32 one that sorts last
    path.write_bytes(data)

    with pytest.raises(InvalidCheckpointError, match=r"optimizer\.exp_avg\.a\.weight: checksum is"):
        store.load(1)
    assert len(store.load(1, rules=LoadRules(only=("model.*", "optimizer.step"))).tensors) == 3


def test_missing_and_unexpected_are_allowed_by_pattern_only(store):
    expected = {"model.a.weight": A, "model.new.weight": ("F32", (1,)), "other": ("F32", (1,))}

    with pytest.raises(MismatchError) as caught:
        store.load(
            expected=expected, rules=LoadRules(allow_missing=("model.new.*",), allow_unexpected=("optimizer.*",))
        )

    assert lines(caught) == ["model.b.weight: unexpected", "other: missing"]


def test_allowed_exceptions_leave_the_rest_loaded(store):
    expected = {"model.a.weight": A, "model.new.weight": ("F32", (1,))}

    loaded = store.load(
        expected=expected, rules=LoadRules(allow_missing=("*.new.*",), allow_unexpected=("optimizer.*", "model.b.*"))
    )

    assert loaded.tensors.keys() == {"model.a.weight"}


def test_renames_carry_the_star_over_and_count_before_everything_else(store):
    rules = LoadRules(renames={"model.*": "backbone.*", "optimizer.step": "step"}, only=("backbone.*", "step"))

    loaded = store.load(expected={"backbone.a.weight": A, "backbone.b.weight": ("F64", (2,)), "step": ("I64", ())},
                        rules=rules)  # fmt: skip

    assert sorted(loaded.tensors) == ["backbone.a.weight", "backbone.b.weight", "step"]
    assert loaded.tensors["step"] == 3


def test_first_rename_that_fits_is_the_one_that_counts(store):
    rules = LoadRules(renames={"model.a.*": "first.*", "model.*": "second.*"}, only=("first.*", "second.*"))

    assert sorted(store.load(rules=rules).tensors) == ["first.weight", "second.b.weight"]


def test_rename_without_effect_or_onto_another_name_is_refused(store):
    with pytest.raises(MismatchError) as caught:
        store.load(rules=LoadRules(renames={"encoder.*": "model.*", "model.b.weight": "model.a.weight"}))

    assert lines(caught) == [
        "model.a.weight: both model.a.weight and model.b.weight would get this name",
        "rename 'encoder.*': matches no tensor",
    ]


def test_cast_is_done_where_allowed_and_refused_elsewhere(store):
    expected = {"model.a.weight": ("F16", (2, 3)), "model.b.weight": ("BF16", (2,))}
    only = ("model.*",)

    with pytest.raises(MismatchError, match=r"model\.b\.weight: dtype F64, expected BF16"):
        store.load(expected=expected, rules=LoadRules(only=only, allow_cast=("model.a.*",)))
    loaded = store.load(expected=expected, rules=LoadRules(only=only, allow_cast=("*",)))

    assert loaded.tensors["model.a.weight"].dtype == np.float16
    assert loaded.tensors["model.b.weight"].words.tolist() == [0x3FC0, 0x4020]


def test_all_values_that_do_not_fit_stand_in_one_error_and_nothing_is_applied(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(1, {"a": np.array([1e6]), "b": np.array([300], np.int32), "c": np.ones(2)}, {})
    targets = {"a": np.zeros(1, np.float16), "b": np.zeros(1, np.int8), "c": np.zeros(2)}

    with pytest.raises(MismatchError) as caught:
        store.load_into(targets, rules=LoadRules(allow_cast=("*",)))

    assert lines(caught) == ["a: 1e+06 does not fit F16", "b: a value of 300 ... 300 does not fit I8"]
    assert targets["c"].tolist() == [0, 0]


def test_load_into_fills_the_targets_and_returns_values(store):
    targets = {
        "model.a.weight": np.zeros((2, 3), np.float32),
        "model.b.weight": RawTensor("BF16", np.zeros(2, np.uint16)),
    }

    loaded = store.load_into(targets, rules=LoadRules(only=("model.*",), allow_cast=("model.b.*",)))

    assert (loaded.tensors, loaded.values) == ({}, {"v": 1})
    assert targets["model.a.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert targets["model.b.weight"].words.tolist() == [0x3FC0, 0x4020]


def test_load_into_leaves_the_targets_alone_when_a_byte_differs(store):
    path = store.root / "step-00000001" / "rank-00000.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with store.open(1) as folder:
        targets = {name: np.full(t.shape, 7, NUMPY_DTYPES[t.dtype]) for name, t in folder.index.tensors.items()}

    with pytest.raises(InvalidCheckpointError, match="none of its checkpoints is valid"):
        store.load_into(targets)

    assert all((target == 7).all() for target in targets.values())


def test_load_into_names_a_target_that_cannot_be_written(store):
    target = np.zeros((2, 3), np.float32)
    target.flags.writeable = False

    with pytest.raises(ValuesError, match=r"model\.a\.weight: a target of float32 \[2, 3\] \(read-only\)"):
        store.load_into({"model.a.weight": target}, rules=LoadRules(only=("model.a.*",)))


def test_load_each_hands_out_one_tensor_at_a_time_after_all_were_verified(store):
    expected = {"model.a.weight": A, "model.b.weight": ("F32", (2,))}
    got = {}

    store.load_each(expected, got.__setitem__, rules=LoadRules(only=("model.*",), allow_cast=("*",)))

    assert got["model.a.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert got["model.b.weight"].dtype == np.float32
    (store.root / "step-00000001" / "state.json").write_text("{}")
    with pytest.raises(InvalidCheckpointError, match="none of its checkpoints is valid"):
        store.load_each(expected, lambda *_: pytest.fail("nothing may be handed out"))


def test_slices_load_a_ranks_part_and_their_shape_is_what_is_compared(store):
    slices = {"model.a.weight": (slice(1, 2), slice(0, 2))}
    only = LoadRules(only=("model.a.*",))

    loaded = store.load(expected={"model.a.weight": ("F32", (1, 2))}, slices=slices, rules=only)

    assert loaded.tensors["model.a.weight"].tolist() == [[3, 4]]
    with pytest.raises(MismatchError, match=r"shape \[1, 2\], expected \[2, 3\]"):
        store.load(expected={"model.a.weight": A}, slices=slices, rules=only)


@pytest.mark.parametrize("slices", [(slice(0, 1),), (slice(0, 2, 2), slice(None)), (slice(0, 1),) * 3])
def test_slices_that_do_not_fit_are_refused_by_name(store, slices):
    with pytest.raises(ValuesError, match=r"model\.a\.weight: expected 2 slices of step 1"):
        store.load(slices={"model.a.weight": slices})
