"""Counts of a description against the model itself and hand-made sums."""

import json

import pytest
from ms_gptmodel import ConfigError, DescriptionConfig, ModelConfig, describe, named_parameters, preset
from ms_gptmodel.description import description_table


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "all_biases", "relu"])
def test_parameter_groups_add_up_to_the_models_parameters(family, families, model_of):
    counts = describe(ModelConfig.from_mapping(families[family]))["parameters"]

    sizes = {name: parameter.size for name, parameter in named_parameters(model_of(family)[0]).items()}
    assert counts["total"] == sum(sizes.values())
    for group in ("attention", "mlp"):
        assert counts[group] == sum(n for name, n in sizes.items() if f".{group}." in name and "_norm" not in name)
    assert counts["norms"] == sum(n for name, n in sizes.items() if "norm" in name)


def test_published_sizes_are_met():
    totals = {name: describe(preset(name))["parameters"]["total"] for name in ("gpt2_124m", "llama_7b", "llama3_8b")}

    assert totals == {"gpt2_124m": 124_439_808, "llama_7b": 6_738_415_616, "llama3_8b": 8_030_261_248}


def test_flops_and_memory_are_the_formulas_by_hand():
    config = ModelConfig(
        vocab_size=10,
        hidden_size=4,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=6,
        max_position_embeddings=8,
    )

    full, half = (describe(config, DescriptionConfig(batch_size=3, dtype=t)) for t in ("float32", "bfloat16"))

    matrices = 2 * (4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 6) + 40
    assert full["flops_per_token"]["forward"] == 2 * matrices + 2 * 2 * 4 * 8
    assert full["flops_per_token"]["training"] == 3 * full["flops_per_token"]["forward"]
    total = matrices + 40 + 5 * 4
    assert full["parameters"]["total"] == total
    assert full["memory_bytes"]["kv_cache"] == 2 * 2 * 1 * 2 * 8 * 3 * 4
    assert [full["memory_bytes"][k] for k in ("weights", "gradients", "optimizer")] == [4 * total, 4 * total, 8 * total]
    assert [half["memory_bytes"][k] for k in ("weights", "gradients", "optimizer")] == [
        2 * total,
        2 * total,
        12 * total,
    ]


def test_a_description_is_json_and_a_table():
    description = describe(preset("gpt2_124m"))

    assert json.loads(json.dumps(description, allow_nan=False)) == description
    assert "124,439,808" in description_table(description)


def test_an_unknown_type_is_refused():
    with pytest.raises(ConfigError, match=r"describe\.dtype: expected one of float32, float16, bfloat16, found 'int8'"):
        DescriptionConfig(dtype="int8")
