import pytest
from ms_ckpt import CheckpointConfig, ConfigError, from_mapping


def test_section_is_read():
    assert from_mapping(CheckpointConfig, {"keep_last": 5}, "checkpoint") == CheckpointConfig(keep_last=5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_lst": 1}, "checkpoint.keep_lst: unknown key; did you mean keep_last?"),
        ({"keep_last": "two"}, "checkpoint.keep_last: expected int, found 'two'"),
        ({"keep_last": True}, "checkpoint.keep_last: expected int, found True"),
        ({"keep_every": -1}, "checkpoint.keep_every: expected an integer >= 0, found -1"),
    ],
)
def test_wrong_settings_are_refused_by_path(values, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        from_mapping(CheckpointConfig, values, "checkpoint")
