"""Counts of a description against the model itself and hand-made sums."""

import json

import pytest
from ms_gptmodel import (
    ConfigError,
    DescriptionConfig,
    ModelConfig,
    describe,
    load_config,
    named_parameters,
    preset,
)
from ms_gptmodel.description import description_table
from ms_gptmodel.shapes import parameter_shapes


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "all_biases", "relu"])
def test_parameter_groups_add_up_to_the_models_parameters(family, families, model_of):
    counts = describe(ModelConfig.from_mapping(families[family]))["parameters"]

    sizes = {name: parameter.size for name, parameter in named_parameters(model_of(family)[0]).items()}
    assert counts["total"] == sum(sizes.values())
    assert counts["total"] == counts["active"]
    for group in ("attention", "mlp"):
        assert counts[group] == sum(n for name, n in sizes.items() if f".{group}." in name and "_norm" not in name)
    assert counts["norms"] == sum(n for name, n in sizes.items() if "norm" in name)


def test_shapes_from_the_config_are_those_of_the_golden_files(contracts):
    folders = sorted(path.parent for path in (contracts / "model" / "golden").glob("*/parameters.json"))
    assert len(folders) >= 8

    for folder in folders:
        golden = json.loads((folder / "parameters.json").read_text())
        assert {name: list(shape) for name, shape in parameter_shapes(load_config(folder)).items()} == golden, folder


def test_published_sizes_are_met():
    published = {
        "gpt2_124m": 124_439_808,
        "llama_7b": 6_738_415_616,
        "llama3_8b": 8_030_261_248,
        "pythia_1b": 1_011_781_632,
        "gptj_6b": 6_050_882_784,
        "phi_2": 2_779_683_840,
        "falcon_7b": 6_921_720_704,
        "opt_125m": 125_239_296,
        "bloom_560m": 559_214_592,
        "bert_base": 109_514_298,
        "gemma_2b": 2_506_172_416,
        "gemma2_2b": 2_614_341_888,
        "gemma3_1b": 999_885_952,
        "mixtral_8x7b": 46_702_792_704,
        "qwen3_30b_a3b": 30_532_122_624,
    }

    assert {name: describe(preset(name))["parameters"]["total"] for name in published} == published


def test_of_experts_the_chosen_ones_are_active_and_layers_that_slide_see_their_window(contracts):
    sizes = {"vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 6, "max_position_embeddings": 8}
    dense = describe(ModelConfig(**sizes))
    sparse = describe(ModelConfig(**sizes, num_experts=5, num_experts_per_tok=2, mlp_only_layers=(1,)))
    sliding = describe(ModelConfig(**sizes, sliding_window=2))
    encoder = describe(ModelConfig(**sizes, is_causal=False))

    expert = 3 * 4 * 6
    assert sparse["parameters"]["experts"] == 5 * expert + 5 * 4
    assert sparse["parameters"]["total"] - sparse["parameters"]["active"] == 3 * expert
    assert sparse["flops_per_token"]["forward"] - dense["flops_per_token"]["forward"] == 2 * (expert + 5 * 4)
    assert dense["flops_per_token"]["forward"] - sliding["flops_per_token"]["forward"] == 4 * 4 * (
        8 - 4
    )  # 1.75 a layer
    assert encoder["flops_per_token"]["forward"] - dense["flops_per_token"]["forward"] == 4 * 4 * 8
    assert encoder["memory_bytes"]["kv_cache"] == 0


def test_activations_grow_with_batch_and_length_and_shrink_when_recomputed():
    config = preset("gpt2_124m")
    one, two = (describe(config, DescriptionConfig(batch_size=n, seq_length=512))["memory_bytes"] for n in (1, 2))
    longer = describe(config, DescriptionConfig(batch_size=1, seq_length=1024))["memory_bytes"]

    per_block = 4 * 768 + 6 * 768 + 12 * 512 + 3 * 3072
    assert one["activations"] == 4 * 512 * (12 * per_block + 2 * 768 + 2 * 50257)
    assert one["activations_recomputed"] == 4 * 512 * (12 * 768 + per_block + 2 * 768 + 2 * 50257)
    assert two["activations"] == 2 * one["activations"]
    assert longer["activations"] > 2 * one["activations"]


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
