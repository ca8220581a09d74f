"""Converted weights held against transformers itself: the same logits, and the same state on the way back.

Tiny random models, made and saved by transformers. Logits must agree within 1e-5; they are of magnitude 1, and both
sides compute in float32. How sharp that is, the mutated layouts show: each must miss by 1e-4 or more.
"""

import json
from pathlib import Path
from typing import Any

import ms_gptmodel
import ms_weightconv
import numpy as np
import pytest

pytestmark = pytest.mark.reference

TOLERANCE = 1e-5
LENGTH = 40  # a rotary mistake hides at position 0 and is plain at 30
SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 112, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.2 * i for i in range(8)],
}  # fmt: skip
OPT = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 112,
    "max_position_embeddings": 64,
}  # fmt: skip
BLOOM = {"vocab_size": 96, "hidden_size": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
FALCON = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MOE = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "num_hidden_layers": 3,
    "mlp_only_layers": [1],
}  # fmt: skip
GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1}


def _without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2 | {"eos_token_id": 2}),
    "gpt2 with exact gelu, untied, its own inner size": (
        "GPT2",
        GPT2 | {"eos_token_id": 2, "activation_function": "gelu", "n_inner": 96, "tie_word_embeddings": False},
    ),
    "llama": ("Llama", SIZES | {"num_key_value_heads": 4, "rms_norm_eps": 1e-5}),
    "llama with biases and grouped queries": ("Llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "llama with llama3 scaling, tied": ("Llama", SIZES | {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama with linear scaling": (
        "Llama",
        SIZES | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "mistral with heads of their own size": ("Mistral", SIZES | {"sliding_window": None, "head_dim": 24}),
    "qwen2": (
        "Qwen2",
        SIZES | {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen3 with biases": ("Qwen3", SIZES | {"head_dim": 16, "attention_bias": True}),
    "llama with yarn scaling": ("Llama", SIZES | {"rope_parameters": YARN}),
    "llama with dynamic scaling": (
        "Llama",
        SIZES | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "mistral with a window": ("Mistral", SIZES | {"sliding_window": 8}),
    "qwen2 with windows in the later layers": (
        "Qwen2",
        SIZES | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "gpt-neox": ("GPTNeoX", _without(SIZES, "num_key_value_heads")),
    "gpt-neox, sequential": ("GPTNeoX", _without(SIZES, "num_key_value_heads") | {"use_parallel_residual": False}),
    "gptj": ("GPTJ", GPT2 | {"eos_token_id": 2, "rotary_dim": 8}),
    "opt": ("OPT", OPT),
    "opt with norms behind and a narrow embedding": (
        "OPT",
        OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32},
    ),
    "bloom": ("Bloom", BLOOM),
    "bloom with six heads": ("Bloom", BLOOM | {"n_head": 6, "hidden_size": 48}),
    "falcon": ("Falcon", FALCON),
    "falcon, newer": ("Falcon", FALCON | {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon, sequential": ("Falcon", FALCON | {"multi_query": False, "parallel_attn": False, "bias": True}),
    "phi": ("Phi", SIZES),
    "phi3": ("Phi3", SIZES | {"pad_token_id": 0}),
    "phi3 with longrope": (
        "Phi3",
        SIZES | {"pad_token_id": 0, "original_max_position_embeddings": 32, "rope_parameters": LONGROPE},
    ),
    "gemma": ("Gemma", SIZES | {"head_dim": 24}),
    "gemma2": ("Gemma2", SIZES | {"head_dim": 24, "sliding_window": 8, "query_pre_attn_scalar": 32}),
    "gemma3": (
        "Gemma3",
        SIZES | {"head_dim": 24, "sliding_window": 8, "num_hidden_layers": 3, "sliding_window_pattern": 2},
    ),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 4}),
    "qwen2-moe": ("Qwen2Moe", SIZES | MOE | {"shared_expert_intermediate_size": 56}),
    "qwen3-moe": ("Qwen3Moe", SIZES | MOE | {"head_dim": 24, "norm_topk_prob": True}),
    "bert": ("Bert", _without(SIZES, "num_key_value_heads", "bos_token_id", "eos_token_id")),
}


def their_model(name: str) -> Any:
    """A model of transformers with weights of std 0.08 and norms and biases that are no ones and zeros."""
    import torch
    import transformers

    torch.manual_seed(5)
    torch.set_num_threads(2)
    kind, values = MODELS[name]
    head = {"GPT2": "LMHeadModel", "Bert": "ForMaskedLM"}.get(kind, "ForCausalLM")
    text = "Text" if kind == "Gemma3" else ""
    config = getattr(transformers, f"{kind}{text}Config")(**values, attn_implementation="eager")
    model = getattr(transformers, f"{kind}{head}")(config).eval()
    with torch.no_grad():
        for key, value in model.named_parameters():
            is_norm = value.ndim == 1 and key.endswith("weight")
            value.copy_(torch.randn(value.shape) * (0.3 if is_norm else 0.08) + (1.0 if is_norm else 0.0))
    return model


def their_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(ids.astype(np.int64))).logits.float().numpy()


def our_logits(folder: Path, ids: np.ndarray, change: Any = None) -> np.ndarray:
    """The logits of a converted folder; `change` edits its config and its arrays first."""
    from mindspore import Tensor
    from safetensors.numpy import load_file

    values = json.loads((folder / "config.json").read_text())
    arrays = load_file(folder / "model.safetensors")
    if change is not None:
        change(values, arrays)
    model = ms_gptmodel.LanguageModel(ms_gptmodel.ModelConfig.from_mapping(values))
    parameters = ms_gptmodel.named_parameters(model)
    parameters.pop("counter.forward", None)  # of dropout: no weight, not converted
    assert set(parameters) == set(arrays)
    for name, parameter in parameters.items():
        assert parameter.shape == arrays[name].shape, name
        parameter.set_data(Tensor(np.ascontiguousarray(arrays[name])))
    return np.asarray(model(Tensor(ids)).asnumpy()).copy()


def difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).max() / max(1.0, np.abs(first).max()))


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return np.random.default_rng(3).integers(0, 96, (2, LENGTH)).astype(np.int32)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, ids: np.ndarray) -> Any:
    """Each model once: transformers' folder, ours, and transformers' logits."""
    made: dict[str, tuple[Path, Path, np.ndarray]] = {}

    def get(name: str) -> tuple[Path, Path, np.ndarray]:
        if name not in made:
            root = tmp_path_factory.mktemp("model")
            model = their_model(name)
            model.save_pretrained(root / "theirs")
            report = ms_weightconv.convert(root / "theirs", root / "ours", to="mindspore", progress=False)
            assert report.unknown_fields == ()
            made[name] = (root / "theirs", root / "ours", their_logits(model, ids))
        return made[name]

    return get


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_gives_the_logits_of_transformers(converted, ids, name):
    _, ours, logits = converted(name)

    assert 0.3 < np.abs(logits).max() < 30
    assert difference(logits, our_logits(ours, ids)) < TOLERANCE


@pytest.mark.parametrize("has_sidecar", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_transformers_loads_the_way_back_with_the_same_state_and_logits(converted, ids, tmp_path, name, has_sidecar):
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

    kind = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
    theirs, ours, logits = converted(name)
    stage, back = tmp_path / "ours", tmp_path / "back"
    stage.mkdir()
    for path in ours.iterdir():
        if has_sidecar or path.name != "huggingface.json":
            (stage / path.name).write_bytes(path.read_bytes())

    ms_weightconv.convert(stage, back, to="huggingface", max_shard_size="60KB", progress=False)
    model, info = kind.from_pretrained(back, output_loading_info=True, attn_implementation="eager")
    original = kind.from_pretrained(theirs, attn_implementation="eager")

    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    state, expected = model.state_dict(), original.state_dict()
    assert set(state) == set(expected)
    assert all(torch.equal(state[key], expected[key]) for key in expected)
    assert difference(logits, their_logits(model.eval(), ids)) < 1e-6
    assert (back / "model.safetensors.index.json").exists()
    if has_sidecar:
        assert json.loads((back / "config.json").read_text()) == json.loads((theirs / "config.json").read_text())
    ms_weightconv.prove(theirs, back, progress=False)


def _exchange(first: str, second: str) -> Any:
    def change(values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for name in [name for name in arrays if first in name]:
            other = name.replace(first, second)
            arrays[name], arrays[other] = arrays[other], arrays[name]

    return change


def _edit(part: str, edit: Any) -> Any:
    def change(values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        for name in arrays:
            if part in name:
                arrays[name] = edit(arrays[name])

    return change


def _set(**changes: Any) -> Any:
    return lambda values, arrays: values.update(changes)


def _per_head(values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """A fused projection read as query, key, value per head instead of all queries, all keys, all values."""
    for layer in range(values["num_hidden_layers"]):
        names = [f"blocks.{layer}.attention.{part}.weight" for part in ("query", "key", "value")]
        fused = np.concatenate([arrays[name] for name in names])
        heads = fused.reshape(values["num_attention_heads"], 3, values["head_dim"], -1)
        for number, name in enumerate(names):
            arrays[name] = heads[:, number].reshape(arrays[name].shape)


def _meta_order(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, 8, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _bias_without(part: str) -> Any:
    return _edit(part, np.zeros_like)


MUTATIONS = {
    "query and key exchanged": ("llama", _exchange("attention.query", "attention.key")),
    "key and value exchanged": ("qwen2", _exchange("attention.key", "attention.value")),
    "gate and up exchanged": ("llama", _exchange("mlp.gate", "mlp.up")),
    "norms exchanged": ("llama", _exchange("attention_norm", "mlp_norm")),
    "norms of query and key exchanged": ("qwen3", _exchange("query_norm", "key_norm")),
    "attention output not transposed": ("gpt2", _edit("attention.output.weight", np.transpose)),
    "fused projection cut per head": ("gpt2", _per_head),
    "query in Meta's rotary order": ("llama", _edit("attention.query.weight", _meta_order)),
    "query and key in Meta's rotary order": (
        "llama",
        lambda values, arrays: [_edit(f"{part}.weight", _meta_order)(values, arrays) for part in ("query", "key")],
    ),
    "heads of the value in another order": (
        "mistral with heads of their own size",
        _edit("attention.value.weight", lambda rows: rows.reshape(2, 24, -1)[::-1].reshape(rows.shape)),
    ),
    "bias of the query left out": ("qwen2", _bias_without("attention.query.bias")),
    "bias of the mlp left out": ("llama with biases and grouped queries", _bias_without("mlp.down.bias")),
    "tanh gelu for exact gelu": ("gpt2 with exact gelu, untied, its own inner size", _set(hidden_act="gelu_new")),
    "exact gelu for tanh gelu": ("gpt2", _set(hidden_act="gelu")),
    "norm eps 1e-6 for 1e-5": ("llama", _set(rms_norm_eps=1e-6)),
    "rotary base 1e4 for 1e6": ("qwen3", _set(rope_theta=1e4)),
    "llama3 scaling left out": ("llama with llama3 scaling, tied", _set(rope_scaling=None)),
    "linear scaling left out": ("llama with linear scaling", _set(rope_scaling=None)),
    "head replaced by the embedding": (
        "llama",
        lambda values, arrays: arrays.update({"lm_head.weight": arrays["embedding.weight"]}),
    ),
    "ids off by one": ("llama", _edit("embedding.weight", lambda rows: np.roll(rows, 1, axis=0))),
    "layers exchanged": ("llama", _exchange("blocks.0.", "blocks.1.")),
    "experts in another order": ("mixtral", _edit("experts.down.weight", lambda each: each[::-1])),
    "scores divided by the whole width": ("llama", lambda values, _: values.update(query_pre_attn_scalar=64.0)),
}


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_mutated_layout_does_not_pass(converted, ids, kind):
    name, change = MUTATIONS[kind]
    _, ours, logits = converted(name)

    assert difference(logits, our_logits(ours, ids, change)) > 10 * TOLERANCE


def _exchange_in_layer_1(values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    first, second = "blocks.1.mlp.gate.weight", "blocks.1.mlp.up.weight"
    arrays[first], arrays[second] = arrays[second], arrays[first]


CAUSES = {
    "query and key exchanged": ("llama", _exchange("attention.query", "attention.key"), "layer 0"),
    "gate and up exchanged in layer 1 alone": ("llama", _exchange_in_layer_1, "layer 1"),
    "query and key turned into Meta's rotary order": (
        "llama",
        lambda values, arrays: [_edit(f"{part}.weight", _meta_order)(values, arrays) for part in ("query", "key")],
        "layer 0",
    ),
    "fused projection cut into all queries, all keys, all values instead of by head": (
        "gpt-neox",
        lambda values, arrays: _thirds(values, arrays),
        "layer 0",
    ),
    "attention.output not transposed": ("gpt2", _edit("attention.output.weight", np.transpose), "layer 0"),
    "activation gelu instead of gelu_new": ("gpt2", _set(hidden_act="gelu"), "layer 0"),
    "head not tied to the embedding": (
        "llama with llama3 scaling, tied",
        lambda values, arrays: (
            values.update(tie_word_embeddings=False),
            arrays.update({"lm_head.weight": arrays["embedding.weight"][::-1]}),
        ),
        "head",
    ),
}


def _thirds(values: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """What cutting a projection that stands by head into thirds makes of the right weights."""
    for layer in range(values["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            names = [f"blocks.{layer}.attention.{part}.{kind}" for part in ("query", "key", "value")]
            parts = [arrays[name].reshape(values["num_attention_heads"], values["head_dim"], -1) for name in names]
            fused = np.stack(parts, 1).reshape(3 * values["hidden_size"], *arrays[names[0]].shape[1:])
            for number, name in enumerate(names):
                arrays[name] = np.split(fused, 3)[number]


@pytest.mark.parametrize("cause", CAUSES)
def test_the_first_diverging_layer_and_the_cause_of_a_mistake_are_named(converted, cause):
    import convert_weights

    name, change, where = CAUSES[cause]
    theirs, ours, _ = converted(name)
    model = convert_weights.TheirModel(theirs)
    values, arrays = convert_weights.read_arrays(ours)
    change(values, arrays)
    cases = {"40 ids": {"input_ids": np.random.default_rng(4).integers(0, 96, (1, 40)).astype(np.int32)}}
    expected = {key: model.run(case) for key, case in cases.items()}

    found = convert_weights.align(values, arrays, cases, expected)

    assert not found["agrees"]
    assert found["first_diverging"] == where
    assert cause in found["likely_causes"]


@pytest.mark.parametrize("name", ["gpt2", "mistral with a window", "bloom", "falcon", "gemma3", "qwen2-moe", "bert"])
def test_every_layer_agrees_in_all_lengths_positions_and_packed_rows(converted, tmp_path, name):
    import convert_weights

    theirs, ours, _ = converted(name)
    reference = tmp_path / "reference.npz"

    found = convert_weights.hold_against_reference(ours, theirs, reference)
    stored = convert_weights.hold_against_reference(ours, theirs, reference)

    assert found["agrees"]
    assert found["largest_logit_difference"] < TOLERANCE
    assert len(found["cases"]) >= (3 if name == "bert" else 4)
    assert all(max(case["largest_layer_differences"]) < TOLERANCE for case in found["cases"].values())
    assert stored["reference"] == str(reference)
    assert stored["largest_logit_difference"] < TOLERANCE
