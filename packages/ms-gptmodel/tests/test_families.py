"""Every family: its config.json of Hugging Face as it is, and transformers' logits from golden files.

The files are written and checked against transformers by integration_tests/test_model_vs_transformers.py.
"""

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from ms_gptmodel import LanguageModel, ModelConfig, from_huggingface, load_weights
from ms_gptmodel.families import FAMILIES

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.npz"))
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def _pynative_mode():
    """A graph would be compiled for each model, run once and thrown away; that both modes agree, test_model shows."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.GRAPH_MODE)


def read(name):
    golden = np.load(GOLDEN / f"{name}.npz")
    weights = {key[8:]: golden[key].astype(np.float32) for key in golden.files if key.startswith("weights/")}
    return json.loads(str(golden["config"])), weights, golden["ids"], golden["logits"]


def error_of(config, weights, ids, logits):
    model = LanguageModel(config)
    load_weights(model, weights)
    return np.abs(model(Tensor(ids)).asnumpy() - logits).max() / max(1.0, np.abs(logits).max())


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_the_golden_ones_of_transformers(name):
    theirs, weights, ids, logits = read(name)

    assert error_of(from_huggingface(theirs), weights, ids, logits) < TOLERANCE


def test_every_family_has_a_golden_file():
    assert {read(name)[0]["model_type"] for name in NAMES} == set(FAMILIES)


MUTATIONS = {
    "pairs interleaved": ("llama_yarn", {"rope_interleaved": True}),
    "halves in place of pairs": ("gptj", {"rope_interleaved": False}),
    "twice as much rotated": ("gpt_neox", {"partial_rotary_factor": 0.5}),
    "yarn left out": ("llama_yarn", {"rope_scaling": None}),
    "dynamic scaling left out": ("llama_dynamic", {"rope_scaling": None, "max_position_embeddings": 60}),
    "branches one after the other": ("gpt_neox", {"parallel_residual": False}),
    "tanh gelu for exact gelu": ("gpt_neox", {"hidden_act": "gelu_new"}),
    "exact gelu for tanh gelu": ("bloom", {"hidden_act": "gelu"}),
    "no slopes": ("bloom", {"position_kind": "none"}),
    "window one wider": ("mistral", {"sliding_window": 8}),
    "window left out": ("qwen2_sliding", {"sliding_window": None, "layer_types": None}),
    "other layer slides": ("gemma2", {"layer_types": ["full_attention", "sliding_attention"]}),
    "scores not capped": ("gemma2", {"attn_logit_softcapping": None}),
    "logits not capped": ("gemma2", {"final_logit_softcapping": None}),
    "scores divided by the root of head_dim": ("gemma2", {"query_pre_attn_scalar": 12.0}),
    "embedding not multiplied": ("gemma3", {"embedding_multiplier": 1.0}),
    "norms do not add one": ("gemma3", {"rms_norm_adds_one": False}),
    "one base for all layers": ("gemma3", {"rope_local_base_freq": None}),
    "positions without offset": ("opt_with_norms_after", {"position_offset": 0, "max_position_embeddings": 66}),
    "one expert only": ("mixtral", {"num_experts_per_tok": 1}),
    "experts' weights not normed": ("mixtral", {"norm_topk_prob": False}),
    "experts' weights normed": ("qwen2_moe", {"norm_topk_prob": True}),
    "experts' weights normed beside a shared expert": ("deepseek", {"norm_topk_prob": True}),
    "embedding not multiplied, one placement of norms": ("gemma", {"embedding_multiplier": 1.0}),
    "heads' norms of another eps": ("qwen3", {"rms_norm_eps": 1e-4}),
    "encoder sees the past only": ("bert", {"is_causal": True}),
    "eps 1e-5 for 1e-6": ("qwen3_moe", {"rms_norm_eps": 1e-5}),
}


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_mutated_config_fails_the_same_gate(kind):
    name, changes = MUTATIONS[kind]
    theirs, weights, ids, logits = read(name)
    config = from_huggingface(theirs).to_mapping()

    error = error_of(ModelConfig.from_mapping(config | changes), weights, ids, logits)

    assert error > 3 * TOLERANCE


@pytest.mark.parametrize(
    "name", ["bloom", "gptj", "gemma3", "opt_with_norms_after", "mixtral", "qwen2_moe", "deepseek", "bert"]
)
def test_documents_of_a_row_are_isolated_to_the_last_bit_and_as_if_alone(name):
    theirs, weights, ids, _ = read(name)
    model = LanguageModel(from_huggingface(theirs))
    load_weights(model, weights)
    lengths = (25, 12)  # and 3 of padding
    segments = np.array([[1] * 25 + [2] * 12 + [0] * 3] * 2, np.int32)
    positions = np.array([[*range(25), *range(12), 0, 0, 0]] * 2, np.int32)
    changed = ids.copy()
    changed[:, :25] = (changed[:, :25] + 5) % 48
    changed[:, 37:] = 7

    before, after = (model(*map(Tensor, (x, positions, segments))).asnumpy() for x in (ids, changed))
    alone = model(Tensor(np.ascontiguousarray(ids[:, 25:37]))).asnumpy()

    np.testing.assert_array_equal(before[:, 25:37], after[:, 25:37])
    assert np.abs(before[:, : lengths[0]] - after[:, : lengths[0]]).max() > 0.01
    np.testing.assert_allclose(before[:, 25:37], alone, rtol=0, atol=TOLERANCE * 3)
    assert np.isfinite(before).all()
