import pytest
from ms_export import ExportConfig, from_mapping
from ms_export.errors import ConfigError


def test_defaults_are_a_configuration():
    config = from_mapping(ExportConfig, {}, "export")

    assert config.windows == (256,)
    assert config.slots > max(config.decode_batches)


def test_lists_become_tuples_and_numbers_in_text_become_numbers():
    values = {"prefill_lengths": [8, 16], "decode_windows": [32, 16], "tolerance": "1e-4", "max_length": 64}

    config = from_mapping(ExportConfig, values, "export")

    assert config.prefill_lengths == (8, 16)
    assert config.windows == (16, 32, 64)
    assert config.tolerance == 1e-4


def test_an_unknown_key_names_its_nearest_known_one():
    with pytest.raises(ConfigError, match=r"export\.max_lenght: unknown key; did you mean max_length\?"):
        from_mapping(ExportConfig, {"max_lenght": 64}, "export")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"max_length": "long"}, "export.max_length: expected int, found 'long'"),
        ({"prefill_lengths": []}, "export.prefill_lengths: expected at least one"),
        ({"prefill_lengths": [0]}, "export.prefill_lengths: expected whole numbers from 1"),
        ({"decode_batches": [1, True]}, "export.decode_batches: expected whole numbers"),
        ({"decode_batches": [1, 1]}, "export.decode_batches: expected different values"),
        ({"prefill_lengths": [512]}, "export.prefill_lengths: expected values up to export.max_length"),
        ({"decode_windows": [512]}, "export.decode_windows: expected values up to export.max_length"),
        ({"slots": 4}, "export.slots: expected at least 5"),
        ({"prefill_batch": 0}, "export.prefill_batch: expected at least 1"),
        ({"precision": "int8"}, "export.precision: expected float32"),
        ({"tolerance": 0.0}, "export.tolerance"),
        ({"temperature": -1.0}, "export.temperature"),
        ({"top_k": -1}, "export.top_k"),
        ({"top_p": 0.0}, "export.top_p"),
        ({"eos_token_ids": [-1]}, "export.eos_token_ids: expected whole numbers from 0"),
    ],
)
def test_an_impossible_value_is_refused_by_name(values, named):
    with pytest.raises(ConfigError) as error:
        from_mapping(ExportConfig, values, "export")

    assert named in str(error.value)
