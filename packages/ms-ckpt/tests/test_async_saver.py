import logging
import resource
import threading
import time

import numpy as np
import pytest
from ms_ckpt import (
    AsyncSaver,
    CheckpointConfig,
    CheckpointStore,
    InvalidCheckpointError,
    RawTensor,
    SaveError,
    StepExistsError,
    ValuesError,
)


class SlowStore(CheckpointStore):
    """Writes nothing before it is let go."""

    def __init__(self, root):
        super().__init__(root, CheckpointConfig(keep_last=2))
        self.go = threading.Event()

    def save(self, *arguments, **options):
        self.go.wait(30)
        return super().save(*arguments, **options)


def blocker(tmp_path):
    """A root that cannot be made: a file stands in its place."""
    path = tmp_path / "root"
    path.write_text("in the way")
    return path


def test_what_is_saved_aside_comes_back_to_the_last_bit(tmp_path, tensors, values, words_of):
    with AsyncSaver(CheckpointStore(tmp_path)) as saver:
        saver.save(4, tensors, values)
        loaded = saver.load()

    assert (loaded.step, loaded.values) == (4, values)
    assert {name: words_of(tensor) for name, tensor in loaded.tensors.items()} == {
        name: words_of(tensor) for name, tensor in tensors.items()
    }


def test_tensors_and_values_may_change_as_soon_as_save_returns(tmp_path):
    store = SlowStore(tmp_path)
    weights = {"w": np.arange(6.0), "b": RawTensor("BF16", np.arange(3, dtype=np.uint16))}
    values = {"list": [1]}

    with AsyncSaver(store) as saver:
        saver.save(1, weights, values)
        weights["w"][:] = -1
        weights["b"].words[:] = 9
        values["list"].append(2)
        store.go.set()

    loaded = store.load()
    assert loaded.tensors["w"].tolist() == [0, 1, 2, 3, 4, 5]
    assert loaded.tensors["b"].words.tolist() == [0, 1, 2]
    assert loaded.values == {"list": [1]}


def test_store_that_keeps_references_would_store_the_changed_weights(tmp_path):
    """The copy is what the promise above rests on: without it the same sequence stores other numbers."""
    store, weights = SlowStore(tmp_path), {"w": np.arange(6.0)}
    writer = threading.Thread(target=store.save, args=(1, weights, {}))
    writer.start()
    weights["w"][:] = -1
    store.go.set()
    writer.join()

    assert store.load().tensors["w"].tolist() == [-1] * 6


def test_failed_save_is_raised_once_at_the_next_save(tmp_path):
    root = blocker(tmp_path)
    with AsyncSaver(CheckpointStore(root)) as saver:
        saver.save(1, {"w": np.zeros(3)}, {})

        with pytest.raises(SaveError, match="step 1 was not saved"):
            saver.save(2, {"w": np.zeros(3)}, {})

        root.unlink()
        saver.save(3, {"w": np.zeros(3)}, {})
    assert CheckpointStore(root).steps() == [3]


@pytest.mark.parametrize("call", ["wait", "load", "close"])
def test_failed_save_is_raised_by_whatever_is_called_next(tmp_path, call):
    saver = AsyncSaver(CheckpointStore(blocker(tmp_path)))
    saver.save(1, {"w": np.zeros(3)}, {})

    with pytest.raises(SaveError, match="step 1 was not saved"):
        getattr(saver, call)()

    saver.close()


def test_wait_returns_the_folder_and_then_nothing(tmp_path):
    with AsyncSaver(CheckpointStore(tmp_path)) as saver:
        assert saver.wait() is None
        saver.save(1, {"w": np.zeros(3)}, {})

        assert saver.wait() == tmp_path / "step-00000001"
        assert saver.wait() is None


def test_step_that_exists_is_refused_unless_it_is_to_be_replaced(tmp_path):
    with AsyncSaver(CheckpointStore(tmp_path)) as saver:
        saver.save(1, {"w": np.zeros(1)}, {})
        saver.save(1, {"w": np.ones(1)}, {}, replace=True)
        assert saver.load().tensors["w"] == [1]
        saver.save(1, {"w": np.full(1, 2.0)}, {})
        with pytest.raises(StepExistsError):
            saver.wait()


@pytest.mark.parametrize("bad", [{"tensors": {"w": [1.0]}}, {"values": {"a": float("nan")}}])
def test_what_cannot_be_stored_is_refused_at_once_and_not_later(tmp_path, bad):
    with AsyncSaver(CheckpointStore(tmp_path)) as saver:
        with pytest.raises(ValuesError):
            saver.save(1, **{"tensors": {"w": np.zeros(1)}, "values": {}, **bad})

        assert saver.wait() is None
        assert saver.load() is None


def test_closed_saver_refuses_and_closing_twice_is_harmless(tmp_path):
    saver = AsyncSaver(CheckpointStore(tmp_path))
    saver.save(1, {"w": np.zeros(1)}, {})
    saver.close()
    saver.close()

    with pytest.raises(SaveError, match="step 2 was not saved: this saver is closed"):
        saver.save(2, {"w": np.zeros(1)}, {})
    assert CheckpointStore(tmp_path).steps() == [1]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ms-ckpt-save")]


def test_failed_save_does_not_hide_the_error_that_ends_the_training(tmp_path, caplog):
    def train():
        with AsyncSaver(CheckpointStore(blocker(tmp_path))) as saver:
            saver.save(1, {"w": np.zeros(1)}, {})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), caplog.at_level(logging.ERROR):
        train()

    assert "the last checkpoint was not saved: " in caplog.text


def test_tensors_may_come_go_and_change_shape_and_dtype_between_saves(tmp_path):
    given = [{"w": np.zeros(3)}, {"w": np.ones((2, 2), np.int8), "v": np.array(5)}, {"v": np.zeros(1)}, {}]

    with AsyncSaver(CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))) as saver:
        for step, tensors in enumerate(given):
            saver.save(step, tensors, {})

    for step, tensors in enumerate(given):
        loaded = CheckpointStore(tmp_path).load(step).tensors
        assert loaded.keys() == tensors.keys()
        for name, array in tensors.items():
            assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(loaded[name], array)


def test_memory_is_flat_over_100_saves_and_no_thread_is_left_behind(tmp_path):
    tensors = {f"t{number}": np.ones(1 << 18, np.float32) for number in range(4)}  # 4 MB
    with AsyncSaver(CheckpointStore(tmp_path, CheckpointConfig(keep_last=1))) as saver:
        saver.prepare(tensors)
        for step in range(10):
            saver.save(step, tensors, {})
        saver.wait()
        threads, peak = threading.active_count(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for step in range(10, 110):
            saver.save(step, tensors, {})
        saver.wait()

        assert threading.active_count() == threads
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
        assert grown < 4 << 20  # one leaked copy of the tensors over all 100 saves would be as much


def test_load_waits_for_the_save_under_way(tmp_path):
    store = SlowStore(tmp_path)
    with AsyncSaver(store) as saver:
        saver.save(1, {"w": np.zeros(1)}, {})
        opener = threading.Thread(target=lambda: (time.sleep(0.05), store.go.set()))
        opener.start()

        assert saver.load().step == 1
        opener.join()


def test_load_of_a_missing_step_is_the_stores_error(tmp_path):
    with AsyncSaver(CheckpointStore(tmp_path)) as saver, pytest.raises(InvalidCheckpointError, match="COMMIT: missing"):
        saver.load(7)
