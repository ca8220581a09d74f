import os

import numpy as np
import pytest
from ms_ckpt import CheckpointConfig, CheckpointStore, ConfigError
from ms_ckpt.retention import Saved, metric_of, superfluous_steps


def kept(saved, just_saved=None, **settings):
    gone = superfluous_steps(saved, CheckpointConfig(**settings), just_saved)
    return [one.step for one in sorted(saved, key=lambda one: one.step) if one.step not in gone]


def timed(*minutes):
    return [Saved(step=step, time=60.0 * minute) for step, minute in enumerate(minutes)]


def rated(*metrics):
    return [Saved(step=step, time=0.0, metric=metric) for step, metric in enumerate(metrics)]


def test_last_ones_and_multiples_stay():
    assert kept(timed(*range(10)), keep_last=2, keep_every=4) == [0, 4, 8, 9]


def test_order_of_listing_does_not_matter():
    assert kept(list(reversed(timed(*range(5)))), keep_last=2) == [3, 4]


def test_one_per_interval_of_time_stays():
    assert kept(timed(0, 4, 9, 10, 12, 21, 22), keep_last=1, keep_every_minutes=10) == [0, 3, 5, 6]


def test_clock_that_goes_backwards_keeps_rather_than_deletes():
    """Under a rule that asks only `time >= last + interval`, steps 2 and 3 would go for five hours to come."""
    assert kept(timed(0, 300, 5, 6, 16), keep_last=1, keep_every_minutes=10) == [0, 1, 2, 4]


def test_best_ones_stay_whichever_way_is_best():
    metrics = rated(3.0, 1.0, 2.0, 5.0, 4.0)

    assert kept(metrics, keep_last=1, keep_best=2, best_metric="loss") == [1, 2, 4]
    assert kept(metrics, keep_last=1, keep_best=2, best_metric="loss", best_is="highest") == [3, 4]


def test_checkpoints_without_the_metric_are_no_candidates():
    assert kept(rated(None, 2.0, None, None), keep_last=1, keep_best=2, best_metric="loss") == [1, 3]


def test_what_was_just_saved_stays_even_when_newer_steps_exist():
    assert kept(timed(*range(4)), just_saved=0, keep_last=1) == [0, 3]


def test_zero_keeps_all_whatever_the_other_rules_say():
    assert kept(timed(*range(5)), keep_last=0, keep_every=100) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("values", "path", "expected"),
    [
        ({"metrics": {"loss": 1.5}}, "metrics.loss", 1.5),
        ({"loss": 2}, "loss", 2.0),
        ({"loss": True}, "loss", None),
        ({"loss": "1"}, "loss", None),
        ({"metrics": {}}, "metrics.loss", None),
        ({"metrics": 3}, "metrics.loss", None),
        ({"loss": 1.0}, "", None),
    ],
)
def test_metric_is_found_by_its_path_or_not_at_all(values, path, expected):
    assert metric_of(values, path) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep_best": 1}, "keep_best: 1, but checkpoint.best_metric is empty"),
        ({"best_is": "least"}, "best_is: expected 'lowest' or 'highest', found 'least'"),
        ({"keep_every_minutes": -1}, "keep_every_minutes: expected an integer >= 0, found -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        CheckpointConfig(**settings)


def test_best_checkpoint_survives_a_restart_and_many_saves(tmp_path):
    losses = [3.0, 1.0, 2.0, 2.5, 2.6, 2.7]
    config = CheckpointConfig(keep_last=2, keep_best=1, best_metric="metrics.loss")
    for step, loss in enumerate(losses):  # a store of its own each time: another run
        CheckpointStore(tmp_path, config).save(step, {"w": np.zeros(1)}, {"metrics": {"loss": loss}})

    assert CheckpointStore(tmp_path).steps() == [1, 4, 5]


def test_time_is_that_of_the_commit(tmp_path):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))
    for step, minute in enumerate((0, 5, 12, 14)):
        folder = store.save(step, {}, {})
        os.utime(folder / "COMMIT", (60 * minute,) * 2)

    assert CheckpointStore(tmp_path, CheckpointConfig(keep_last=1, keep_every_minutes=10)).prune() == [1]


def test_damaged_newest_never_pushes_out_the_last_valid_one(tmp_path):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))
    for step in (1, 2, 3):
        (store.save(step, {}, {}) / ("state.json" if step > 1 else "none")).unlink(missing_ok=True)

    strict = CheckpointStore(tmp_path, CheckpointConfig(keep_last=1))

    assert strict.prune() == []
    assert strict.load().step == 1
