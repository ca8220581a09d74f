"""Fresh weights, golden parameter lists, loading, ids."""

import json

import numpy as np
import pytest
from ms_gptmodel import (
    InputError,
    LanguageModel,
    ModelConfig,
    WeightsError,
    check_ids,
    load_config,
    load_weights,
    named_parameters,
)
from ms_gptmodel.initialization import initial_weight


def arrays_of(model):
    return {name: parameter.asnumpy().copy() for name, parameter in named_parameters(model).items()}


def test_names_and_shapes_are_those_of_the_golden_files(contracts):
    folders = sorted(path.parent for path in (contracts / "model" / "golden").glob("*/parameters.json"))
    assert folders

    for folder in folders:
        model = LanguageModel(load_config(folder))

        shapes = {name: list(parameter.shape) for name, parameter in named_parameters(model).items()}
        assert shapes == json.loads((folder / "parameters.json").read_text()), folder.name


def test_fresh_weights_are_normal_scaled_by_depth_and_ones_and_zeros(families):
    config = ModelConfig.from_mapping({**families["gpt2"], "hidden_size": 96, "intermediate_size": 384})

    weights = arrays_of(LanguageModel(config))

    assert weights["embedding.weight"].std() == pytest.approx(0.02, rel=0.05)
    assert weights["blocks.0.mlp.up.weight"].std() == pytest.approx(0.02, rel=0.05)
    for name in ("mlp.down", "attention.output"):
        assert weights[f"blocks.1.{name}.weight"].std() == pytest.approx(0.02 / 2, rel=0.05)
    assert (weights["norm.weight"] == 1).all()
    assert all((value == 0).all() for name, value in weights.items() if name.endswith(".bias"))
    correlation = np.corrcoef(weights["blocks.0.mlp.up.weight"].ravel(), weights["blocks.1.mlp.up.weight"].ravel())
    assert abs(correlation[0, 1]) < 0.02


def test_fresh_weights_depend_on_seed_and_name_alone(families):
    shallow = ModelConfig.from_mapping(families["llama"])
    wide = ModelConfig.from_mapping({**families["llama"], "attention_bias": True, "qk_norm": True})

    first, again, other = (arrays_of(LanguageModel(c, seed=s)) for c, s in ((shallow, 3), (wide, 3), (shallow, 4)))

    assert all(np.array_equal(value, again[name]) for name, value in first.items())
    assert not np.array_equal(first["embedding.weight"], other["embedding.weight"])
    name = "blocks.1.mlp.gate.weight"
    np.testing.assert_array_equal(initial_weight(shallow, name, (80, 48), 3), first[name])


def test_weights_that_do_not_fit_are_all_named_and_none_is_loaded(families):
    model = LanguageModel(ModelConfig.from_mapping(families["llama"]))
    before = arrays_of(model)
    arrays = {name: value + 1 for name, value in before.items()}
    arrays["blocks.0.extra"] = arrays.pop("norm.weight")
    arrays["lm_head.weight"] = arrays["lm_head.weight"][:5]

    with pytest.raises(WeightsError) as refused:
        load_weights(model, arrays)

    for text in ("missing norm.weight", "unexpected blocks.0.extra", "lm_head.weight has shape (5, 48), expected"):
        assert text in str(refused.value)
    assert all(np.array_equal(value, before[name]) for name, value in arrays_of(model).items())


def test_ids_and_positions_out_of_range_are_refused_by_place(families):
    config = ModelConfig.from_mapping(families["llama"])

    check_ids(config, [[0, 60]], [[0, 63]])
    with pytest.raises(InputError, match=r"input_ids\[1, 0\] is 61: expected 0 to 60 \(vocab_size 61\); 1 such in all"):
        check_ids(config, [[0], [61]])
    with pytest.raises(InputError, match=r"input_ids\[0, 1\] is -1"):
        check_ids(config, [[0, -1]])
    with pytest.raises(InputError, match=r"position_ids\[0, 0\] is 64"):
        check_ids(config, [[0]], [[64]])
    with pytest.raises(InputError, match="expected integers, found float64"):
        check_ids(config, [[0.5]])
    with pytest.raises(InputError, match="rows of 65 ids"):
        check_ids(config, np.zeros((1, 65), int))
