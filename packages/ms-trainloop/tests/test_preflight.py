"""Tests of the cheap checks: each fault of a batch is found and named with its cause."""

import numpy as np
import pytest
from ms_trainloop.errors import BatchError
from ms_trainloop.preflight import check_batch, check_first_loss, require_sound_batch


def make_batch():
    ids = np.arange(1, 9, dtype=np.int32).reshape(2, 4) % 7
    labels = np.array([[2, 3, 4, 5], [6, 0, 1, 2]], np.int32)
    return {"input_ids": ids, "labels": labels, "position_ids": ids * 0, "segment_ids": ids * 0 + 1}


def spoil(key, change):
    batch = {name: np.array(value) for name, value in make_batch().items()}
    batch[key] = change(batch[key])
    return batch


def at(row, column, value):
    def change(array):
        array[row, column] = value
        return array

    return change


def test_a_sound_batch_has_no_finding():
    assert check_batch(make_batch(), rows=2, vocab_size=7) == []


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (spoil("input_ids", at(1, 3, 7)), r"input_ids\[1, 3\]: found id 7, expected 0 \.\.\. 6 .*another tokenizer"),
        (spoil("input_ids", at(0, 0, -1)), r"input_ids\[0, 0\]: found id -1"),
        (spoil("labels", at(1, 3, -1)), r"labels\[1, 3\]: found id -1"),
        (spoil("labels", lambda array: make_batch()["input_ids"]), "labels are not shifted"),
        (spoil("labels", lambda array: array[::-1].copy()), "come from other rows"),
        (spoil("labels", lambda array: array.astype(np.int64)), "labels: found int64, expected int32"),
        (spoil("input_ids", lambda array: array[:1]), r"input_ids: found shape \[1, 4\], expected \[2, seq_length\]"),
        (spoil("labels", lambda array: array[:, :3]), "shapes differ"),
        ({"input_ids": make_batch()["input_ids"]}, "missing labels, position_ids, segment_ids"),
    ],
)
def test_a_broken_batch_is_refused_with_cause_and_fix(batch, message):
    with pytest.raises(BatchError, match=message) as caught:
        require_sound_batch(batch, rows=2, vocab_size=7)

    assert "fix: " in str(caught.value)


def test_labels_that_take_no_loss_may_differ_from_the_next_input():
    batch = spoil("labels", at(0, 1, -100))

    assert check_batch(batch, rows=2, vocab_size=7) == []


def test_many_masked_labels_are_a_warning():
    batch = spoil("labels", lambda array: np.where(np.arange(4) < 3, np.int32(-100), array))

    (finding,) = require_sound_batch(batch, rows=2, vocab_size=7)

    assert "75% of them are -100" in str(finding)


def test_the_first_loss_is_held_against_a_guess():
    assert check_first_loss(9.1, 8192) == []
    assert "initialized too wide" in str(check_first_loss(15.0, 8192)[0])
    assert "not fresh" in str(check_first_loss(3.0, 8192)[0])
    assert check_first_loss(float("nan"), 8192)
