"""A small state with every corner that a file can have, and where the contract's golden files lie."""

from pathlib import Path

import numpy as np
import pytest
from ms_ckpt import RawTensor


@pytest.fixture
def tensors():
    generator = np.random.default_rng(1)
    return {
        "model.embedding.weight": generator.normal(size=(5, 3)).astype(np.float32),
        "model.norm.weight": np.array([1.5, -0.0, np.inf, np.nan], np.float16),
        "model.lm_head.weight": RawTensor("BF16", np.array([[0x3FC0, 0x8000, 0x7F80], [0x7FA1, 1, 0xFFC1]], np.uint16)),
        "optimizer.exp_avg.norm.weight": generator.normal(size=4),
        "optimizer.step": np.array(7, np.int64),
        "extra.nothing": np.empty((0, 3), np.float32),
        "extra.flags": np.array([True, False, True]),
        "extra.fp8": RawTensor("F8_E4M3", np.arange(5, dtype=np.uint8)),
    }


@pytest.fixture
def values():
    return {
        "samples_consumed": 2**53 + 1,
        "epoch": 0,
        "loss_scale": 65536.0,
        "learning_rate": 1e-4,
        "random_state": {"seed": 42},
        "tokenizer_fingerprint": "sha256:é",
        "config": {"list": [1, 2.5, None, "text", True], "nested": {}},
    }


@pytest.fixture(scope="session")
def words_of():
    """The words of any tensor, as bytes: what equality to the last bit is about."""

    def words(tensor):
        array = tensor.words if isinstance(tensor, RawTensor) else tensor
        return array.dtype.str, array.shape, array.tobytes()

    return words


@pytest.fixture(scope="session")
def contract():
    return Path(__file__).parents[3] / "integration_tests" / "contracts" / "checkpoint"
