"""Where the contract's golden files lie, and a small model to lay on meshes."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def contract():
    return Path(__file__).parents[3] / "integration_tests" / "contracts" / "plan"


@pytest.fixture
def model():
    return {
        "num_hidden_layers": 10,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 24,
        "vocab_size": 65,
    }


@pytest.fixture
def parameters():
    shapes = {"embedding.weight": [65, 12], "norm.weight": [12], "lm_head.weight": [65, 12]}
    for block in range(10):
        for name, rows in {"query": 12, "key": 4, "value": 4}.items():
            shapes[f"blocks.{block}.attention.{name}.weight"] = [rows, 12]
        shapes[f"blocks.{block}.mlp.up.weight"] = [24, 12]
        shapes[f"blocks.{block}.mlp.down.weight"] = [12, 24]
    return shapes
