from dataclasses import replace

import pytest
from mindspore import Parameter, ops
from ms_export.errors import ModelError


def test_the_cache_tells_layers_heads_and_width(toy, config):
    model = toy.cached_model(config)

    assert (model.num_layers, model.num_key_value_heads, model.head_dim) == (1, 2, 16)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weights": {}}, "model.weights: found none"),
        ({"cache": {}}, "expected cache.N.key and cache.N.value"),
        ({"slots": 5}, "cache.0.key: expected shape"),
        ({"slots": 1}, "expected 2 slots or more"),
        ({"cache": {"cache.0.key": Parameter(ops.zeros((128, 16)))}}, "expected cache.N.key"),
        (
            {
                "cache": {
                    "cache.0.key": Parameter(ops.zeros((128, 16))),
                    "cache.0.value": Parameter(ops.zeros((64, 16))),
                }
            },
            "expected shape",
        ),
    ],
)
def test_a_cache_of_another_layout_is_refused_by_name(toy, config, changes, named):
    with pytest.raises(ModelError, match=named):
        replace(toy.cached_model(config), **changes)


def test_parameters_that_nobody_named_are_refused(toy, config):
    model = toy.cached_model(config)
    fewer = replace(model, weights={name: p for name, p in model.weights.items() if name != "lm_head.weight"})

    with pytest.raises(ModelError, match=r"Prefill: reaches .* neither in weights nor in cache: \['.*lm_head'\]"):
        fewer.require_cells(model.prefill, {16: model.decode(16)})
