import pytest
from ms_weightconv import ConvertConfig, from_mapping
from ms_weightconv.errors import ConfigError
from ms_weightconv.target import parse_size


def test_a_section_of_a_runs_config_is_read():
    config = from_mapping(ConvertConfig, {"max_shard_size": 1000000000, "dtype": "bf16", "family": "llama"}, "convert")

    assert config == ConvertConfig(max_shard_size=1000000000, dtype="bf16", family="llama")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_shard_sise": 1}, r"convert\.max_shard_sise: unknown key; did you mean max_shard_size\?"),
        ({"dtype": 16}, r"convert\.dtype: expected .*found 16"),
        ({"dtype": "int8"}, "dtype: found 'int8'"),
        ({"max_shard_size": 0}, "max_shard_size: found 0"),
        ({"max_shard_size": True}, "max_shard_size: expected"),
        ({"family": "lama"}, "family: found 'lama', expected one of gpt2"),
    ],
)
def test_a_wrong_value_is_refused_by_its_path(values, text):
    with pytest.raises(ConfigError, match=text):
        from_mapping(ConvertConfig, values, "convert")


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("500 MiB", 500 << 20), ("7", 7), (7, 7), ("1kb", 1000)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("size", ["", "GB", "-5GB", "5.5GB", "5XB", 0, -1, 1.5])
def test_other_sizes_are_refused(size):
    with pytest.raises(ConfigError, match="max_shard_size"):
        parse_size(size)
