import pytest
from ms_dataprep.config import DataConfig, TokenizerConfig, from_mapping
from ms_dataprep.errors import ConfigError


def test_an_unknown_key_names_its_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r"data\.seq_lenght: unknown key; did you mean seq_length\?"):
        from_mapping(DataConfig, {"seq_lenght": 8}, "data")


def test_a_missing_and_a_mistyped_key_are_named() -> None:
    with pytest.raises(ConfigError, match="data: missing seq_length"):
        from_mapping(DataConfig, {}, "data")
    with pytest.raises(ConfigError, match=r"data\.seq_length: expected int, found '8'"):
        from_mapping(DataConfig, {"seq_length": "8"}, "data")


def test_a_share_written_as_text_or_whole_number_is_a_number() -> None:
    assert from_mapping(DataConfig, {"seq_length": 8, "validation_share": "5e-2"}, "data").validation_share == 0.05
    assert from_mapping(DataConfig, {"seq_length": 8, "validation_share": 1}, "data").validation_share == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seq_length": 0}, "seq_length: expected 1 or more, found 0"),
        ({"layout": "int64"}, "layout: expected one of int32, bytes, found 'int64'"),
        ({"packing": "first_fit"}, "packing: expected one of"),
        ({"validation_share": 1.5}, "validation_share: expected 0 to 1, found 1.5"),
        ({"part": "validation"}, "part `validation` is empty"),
        ({"eod_id": 3, "eod_token": "</s>"}, "give eod_token or eod_id, not both"),
    ],
)
def test_an_impossible_value_is_named_with_what_was_expected(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DataConfig(**{"seq_length": 8, **values})


def test_a_vocabulary_too_small_for_all_bytes_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab_size: expected 257 or more, found 256"):
        TokenizerConfig(vocab_size=256)
