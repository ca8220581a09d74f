"""The config: contract files, defaults, refusals."""

import json

import jsonschema
import pytest
from ms_gptmodel import PRESETS, ConfigError, ModelConfig, load_config, preset

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def schema(contracts):
    return json.loads((contracts / "model" / "config.schema.json").read_text())


def test_every_golden_config_is_read_and_written_back_unchanged(contracts, schema):
    paths = sorted((contracts / "model" / "golden").glob("*/config.json"))
    assert paths

    for path in paths:
        config = load_config(path)

        jsonschema.validate(config.to_mapping(), schema)
        assert json.loads(config.to_json()) == json.loads(path.read_text()), path


def test_the_schema_and_the_dataclass_have_the_same_keys_and_required_ones(schema):
    assert set(ModelConfig.from_mapping(TINY).to_mapping()) == set(schema["properties"])
    assert set(schema["required"]) == set(TINY) | {"format", "version"}


def test_every_preset_satisfies_the_schema(schema):
    for name in PRESETS:
        jsonschema.validate(preset(name).to_mapping(), schema)


def test_a_saved_config_loads_equal_from_file_and_folder(tmp_path):
    config = ModelConfig.from_mapping({**TINY, "eos_token_id": [3, 5], "rope_theta": "5e5"})

    config.save(tmp_path / "config.json")

    assert load_config(tmp_path / "config.json") == load_config(tmp_path) == config
    assert config.rope_theta == 500000.0
    assert config.eos_token_ids == (3, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_heads_and_head_dim_have_defaults_also_when_null():
    config = ModelConfig.from_mapping({**TINY, "num_key_value_heads": None, "head_dim": None})

    assert (config.num_key_value_heads, config.head_dim) == (4, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hiden_size": 3}, "model.hiden_size: unknown key; did you mean hidden_size"),
        ({"format": "ms-export.bundle"}, "model.format: expected 'ms-gptmodel.config', found 'ms-export.bundle'"),
        ({"version": 2}, "model.version: expected 1, found 2"),
        ({"hidden_size": "wide"}, "model.hidden_size: expected int, found 'wide'"),
        ({"hidden_size": True}, "model.hidden_size: expected int, found True"),
        ({"tie_word_embeddings": 1}, "model.tie_word_embeddings: expected bool, found 1"),
        ({"hidden_size": 0}, "model.hidden_size: expected 1 or more, found 0"),
        ({"num_key_value_heads": 3}, "model.num_key_value_heads: expected a divisor of num_attention_heads 4, found 3"),
        ({"num_attention_heads": 5}, "model.num_attention_heads: expected a divisor of hidden_size 32"),
        ({"num_key_value_heads": 0}, "model.num_key_value_heads: expected 1 or more"),
        ({"head_dim": 7}, "model.head_dim: expected an even number"),
        ({"hidden_act": "tanh"}, "model.hidden_act: expected one of silu, gelu, gelu_new, relu, found 'tanh'"),
        ({"rms_norm_eps": 0}, "model.rms_norm_eps: expected a positive number, found 0.0"),
        ({"rope_theta": float("nan")}, "model.rope_theta: expected a positive number, found nan"),
        ({"eos_token_id": 64}, "model.eos_token_id: expected different ids from 0 to 63, found 64"),
        ({"eos_token_id": []}, "model.eos_token_id: expected different ids"),
        ({"eos_token_id": [1, 1]}, "model.eos_token_id: expected different ids"),
        ({"norm_bias": True}, "model.norm_bias: expected false with rms_norm"),
        ({"rope_scaling": {"rope_type": "ntk"}}, "expected rope_type linear, dynamic, llama3, yarn, longrope, found"),
        ({"rope_scaling": {"rope_type": "linear"}}, "model.rope_scaling: expected exactly the keys factor, rope_type"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "positive numbers, factor 1 or more"),
    ],
)
def test_an_impossible_config_is_refused_by_field(changes, message):
    with pytest.raises(ConfigError) as refused:
        ModelConfig.from_mapping({**TINY, **changes})

    assert message in str(refused.value)


def test_a_missing_key_is_refused_by_name():
    with pytest.raises(ConfigError, match="model: missing hidden_size"):
        ModelConfig.from_mapping({key: value for key, value in TINY.items() if key != "hidden_size"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON file"),
        ("[]", "expected a JSON object, found list"),
        ('{"vocab_size": 3}', "no 'format'; expected 'ms-gptmodel.config' version 1"),
        ('{"format": "x", "format": "x"}', "repeated key 'format'"),
    ],
)
def test_a_broken_file_is_refused_by_name(text, message, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text)

    with pytest.raises(ConfigError) as refused:
        load_config(path)

    assert str(path) in str(refused.value)
    assert message in str(refused.value)


def test_an_unknown_preset_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"preset 'gpt5': unknown; known: gpt2_124m, "):
        preset("gpt5")
