"""Tests of the configuration: what is read, what is refused and how."""

import pytest
from ms_trainloop.config import TrainConfig, from_mapping
from ms_trainloop.errors import ConfigError

GOOD = {"steps": 10, "global_batch_size": 8, "micro_batch_size": 2, "learning_rate": "3e-4"}


def test_a_rate_that_yaml_reads_as_text_is_a_number():
    assert from_mapping(TrainConfig, GOOD, "train").learning_rate == 3e-4


def test_an_unknown_key_names_its_nearest_known_one():
    with pytest.raises(ConfigError, match=r"train.learning_rat: unknown key; did you mean learning_rate\?"):
        from_mapping(TrainConfig, {**GOOD, "learning_rat": 1}, "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"warmup_steps": 11}, r"train.warmup_steps: found 11, expected at most train.steps \(10\)"),
        ({"global_batch_size": 7}, "train.global_batch_size: found 7, expected a multiple"),
        ({"steps": 0}, "train.steps: found 0"),
        ({"learning_rate": 0.0}, "train.learning_rate: found 0.0"),
        ({"learning_rate": float("nan")}, "train.learning_rate: found nan"),
        ({"min_learning_rate": 1.0}, "train.min_learning_rate: found 1.0"),
        ({"schedule": "cosin"}, "train.schedule: found 'cosin', expected one of cosine, linear, constant"),
        ({"precision": "int8"}, "train.precision: found 'int8'"),
        ({"beta2": 1.0}, "train.beta2: found 1.0"),
        ({"allow_changes": ["step"]}, "train.allow_changes"),
        ({"steps": True}, "train.steps: expected int, found True"),
    ],
)
def test_impossible_values_are_refused_by_name(changes, message):
    with pytest.raises(ConfigError, match=message):
        from_mapping(TrainConfig, {**GOOD, **changes}, "train")


def test_accumulation_follows_from_the_ranks_and_must_divide():
    config = from_mapping(TrainConfig, GOOD, "train")

    assert [config.accumulation_steps(ranks) for ranks in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(ConfigError, match="expected a multiple of 6"):
        config.accumulation_steps(3)
