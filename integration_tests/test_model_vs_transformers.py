"""Our networks held against transformers', family by family, on tiny random models and on their own config.json.

The weights are mapped by hand here, so that this test asks nothing of the converter. Both sides compute in float32;
logits are of magnitude 1 and must agree within 1e-5. How sharp that is, the mutations show.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ms_gptmodel
import numpy as np
import pytest

pytestmark = pytest.mark.reference

TOLERANCE = 1e-5
LENGTH = 40  # a rotary mistake hides at position 0 and is plain at 30
Arrays = dict[str, np.ndarray]

SIZES = {
    "vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 56, "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
HEADS = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
NO_INNER = {key: value for key, value in HEADS.items() if key != "intermediate_size"}
OLD = {
    "vocab_size": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GEMMA = SIZES | {"head_dim": 12}
MOE = SIZES | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def _rope(kind: str = "default", **keys: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **keys}}


YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=16)
LLAMA3 = _rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32,
)  # fmt: skip
LONG = _rope(
    "longrope", short_factor=[1.0 + n / 8 for n in range(4)], long_factor=[2.0 + n for n in range(4)], factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
# transformers has no class for the first DeepSeek-MoE: its Llama with its DeepSeek-V2's layer of experts is that model.
DEEPSEEK: dict[str, Any] = {
    "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1, "norm_topk_prob": False, "topk_method": "greedy", "routed_scaling_factor": 1.0,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", OLD | {"n_inner": 40, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}),
    "gpt_neox": ("GPTNeoXForCausalLM", HEADS | NO_DROPOUT),
    "gpt_neox sequential": (
        "GPTNeoXForCausalLM",
        HEADS | NO_DROPOUT | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new"}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "gptj": ("GPTJForCausalLM", OLD | {"rotary_dim": 4}),
    "opt": ("OPTForCausalLM", NO_INNER | {"ffn_dim": 56, "dropout": 0.0}),
    "opt with norms after": (
        "OPTForCausalLM",
        NO_INNER | {"ffn_dim": 56, "dropout": 0.0, "do_layer_norm_before": False, "word_embed_proj_dim": 16},
    ),
    "bloom": (
        "BloomForCausalLM",
        {"vocab_size": 48, "hidden_size": 48, "n_layer": 2, "n_head": 6, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "falcon 7b": ("FalconForCausalLM", NO_INNER | {"multi_query": True, "parallel_attn": True}),
    "falcon 40b": ("FalconForCausalLM", NO_INNER | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon sequential": (
        "FalconForCausalLM", NO_INNER | {"multi_query": False, "parallel_attn": False, "ffn_hidden_size": 40},
    ),
    "phi": ("PhiForCausalLM", SIZES | {"embd_pdrop": 0.0, "resid_pdrop": 0.0}),
    "llama": ("LlamaForCausalLM", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "llama yarn": ("LlamaForCausalLM", SIZES | YARN),
    "llama llama3": ("LlamaForCausalLM", SIZES | LLAMA3 | {"tie_word_embeddings": True}),
    "llama linear": ("LlamaForCausalLM", SIZES | _rope("linear", factor=2.0)),
    "llama dynamic": ("LlamaForCausalLM", SIZES | _rope("dynamic", factor=3.0) | {"max_position_embeddings": 20}),
    "llama longrope": ("LlamaForCausalLM", SIZES | LONG),
    "mistral": ("MistralForCausalLM", SIZES | {"sliding_window": 7, "head_dim": 12}),
    "qwen2": ("Qwen2ForCausalLM", SIZES | {"tie_word_embeddings": True}),
    "qwen2 sliding": (
        "Qwen2ForCausalLM", SIZES | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", SIZES | {"head_dim": 16}),
    "gemma": ("GemmaForCausalLM", GEMMA),
    "gemma2": ("Gemma2ForCausalLM", GEMMA | {"sliding_window": 8, "query_pre_attn_scalar": 20}),
    "gemma3": (
        "Gemma3ForCausalLM",
        GEMMA | {"sliding_window": 8, "query_pre_attn_scalar": 20, "num_hidden_layers": 3}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
        | {"rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
        }},
    ),
    "mixtral": ("MixtralForCausalLM", SIZES | {"num_local_experts": 6, "num_experts_per_tok": 2}),
    "qwen2_moe": (
        "Qwen2MoeForCausalLM",
        MOE | {"shared_expert_intermediate_size": 28, "num_hidden_layers": 3, "mlp_only_layers": [1]},
    ),
    "qwen3_moe": ("Qwen3MoeForCausalLM", MOE | {"norm_topk_prob": True, "head_dim": 16}),
    "deepseek": ("LlamaForCausalLM", SIZES),  # with the keys of DEEPSEEK, see their_model
    "bert": ("BertForMaskedLM", HEADS | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
}  # fmt: skip


GOLDEN = (
    "gpt2", "gpt_neox", "gptj", "opt with norms after", "bloom", "falcon 40b", "phi", "llama yarn", "llama dynamic",
    "mistral", "qwen2 sliding", "qwen3", "gemma", "gemma2", "gemma3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek",
    "bert",
)  # fmt: skip
GOLDEN_FOLDER = Path(__file__).parents[1] / "packages/ms-gptmodel/tests/golden"


def their_model(name: str) -> Any:
    """A model of transformers with weights of std 0.12 and norms and biases that are no ones and zeros."""
    import torch
    import transformers

    torch.manual_seed(5)
    torch.set_num_threads(2)
    kind, values = MODELS[name]
    config_class = getattr(transformers, kind).config_class
    model = getattr(transformers, kind)(config_class(**values, attn_implementation="eager")).eval()
    if name == "deepseek":
        from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe

        model.model.layers[1].mlp = DeepseekV2Moe(transformers.DeepseekV2Config(**SIZES | DEEPSEEK))
    with torch.no_grad():
        for key, value in model.named_parameters():
            is_norm = value.ndim == 1 and key.endswith("weight")
            middle = 1.0 if is_norm and "gemma" not in name else 0.0
            drawn = torch.randn(value.shape) * (0.3 if is_norm else 0.12) + middle
            value.copy_(drawn.half().float())  # so that golden files can hold them in half precision
    return model


def their_config(name: str, model: Any) -> dict[str, Any]:
    """The model's config.json."""
    values = model.config.to_diff_dict()
    if name == "deepseek":
        values = {key: value for key, value in values.items() if key != "mlp_bias"}  # Llama's own
        values |= DEEPSEEK | {"model_type": "deepseek"}
    return values


RENAMES = (
    # the root
    (r"^(transformer|gpt_neox|model\.decoder|model|bert)\.", ""),
    (r"^(wte|embed_in|embed_tokens|word_embeddings|embeddings\.word_embeddings)\.", "embedding."),
    (r"^(wpe|embed_positions|embeddings\.position_embeddings)\.", "position_embedding."),
    (r"^embeddings\.token_type_embeddings\.", "token_type_embedding."),
    (r"^(word_embeddings_layernorm|embeddings\.LayerNorm)\.", "embedding_norm."),
    (r"^project_in\.", "embedding_projection."),
    (r"^project_out\.", "head_projection."),
    (r"^(ln_f|final_layer_norm|final_layernorm|norm)\.", "norm."),
    (r"^(embed_out|lm_head|cls\.predictions\.decoder)\.", "lm_head."),
    (r"^cls\.predictions\.bias$", "lm_head.bias"),
    (r"^cls\.predictions\.transform\.LayerNorm\.", "lm_head_transform.norm."),
    (r"^cls\.predictions\.transform\.", "lm_head_transform."),
    (r"^(h|layers|encoder\.layer)\.(\d+)\.", r"blocks.\2."),
    # attention
    (r"\.attention\.output\.LayerNorm\.", ".attention_norm."),
    (r"\.attention\.output\.dense\.", ".attention.output."),
    (r"\.attention\.self\.", ".attention."),
    (r"\.(attn|self_attn|self_attention)\.", ".attention."),
    (r"\.attention\.(q_proj|query)\.", ".attention.query."),
    (r"\.attention\.(k_proj|key)\.", ".attention.key."),
    (r"\.attention\.(v_proj|value)\.", ".attention.value."),
    (r"\.attention\.(o_proj|out_proj|c_proj|dense)\.", ".attention.output."),
    (r"\.attention\.q_norm\.", ".attention.query_norm."),
    (r"\.attention\.k_norm\.", ".attention.key_norm."),
    # feed-forward
    (r"^(blocks\.\d+)\.output\.LayerNorm\.", r"\1.mlp_norm."),
    (r"^(blocks\.\d+)\.intermediate\.dense\.", r"\1.mlp.up."),
    (r"^(blocks\.\d+)\.output\.dense\.", r"\1.mlp.down."),
    (r"^(blocks\.\d+)\.fc1\.", r"\1.mlp.up."),
    (r"^(blocks\.\d+)\.fc2\.", r"\1.mlp.down."),
    (r"\.mlp\.(c_fc|fc_in|dense_h_to_4h|fc1|up_proj)\.", ".mlp.up."),
    (r"\.mlp\.(c_proj|fc_out|dense_4h_to_h|fc2|down_proj)\.", ".mlp.down."),
    (r"\.mlp\.gate_proj\.", ".mlp.gate."),
    (r"\.mlp\.gate\.weight$", ".mlp.gate.weight"),
    (r"\.mlp\.shared_experts?\.(gate|up|down)_proj\.", r".mlp.shared_expert.\1."),
)
NORMS = (
    (r"\.(ln_1|input_layernorm|ln_attn)\.", ".attention_norm."),
    (r"^(blocks\.\d+)\.self_attn_layer_norm\.", r"\1.attention_norm."),
    (r"\.(ln_2|post_attention_layernorm|ln_mlp)\.", ".mlp_norm."),
    (r"^(blocks\.\d+)\.final_layer_norm\.", r"\1.mlp_norm."),
)
SANDWICH_NORMS = (
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".attention_post_norm."),
    (r"\.pre_feedforward_layernorm\.", ".mlp_norm."),
    (r"\.post_feedforward_layernorm\.", ".mlp_post_norm."),
)


def our_arrays(name: str, model: Any, config: ms_gptmodel.ModelConfig) -> Arrays:
    """transformers' parameters under our names, in our layouts."""
    family = name.split()[0]
    renames = (*RENAMES, *(SANDWICH_NORMS if family in ("gemma2", "gemma3") else NORMS))
    arrays: Arrays = {}
    for key, value in model.named_parameters():
        ours = key
        if family in ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek") and re.search(r"mlp\.gate\.weight$", key):
            ours = key.replace("mlp.gate.", "mlp.router.")
        for pattern, replacement in renames:
            ours = re.sub(pattern, replacement, ours)
        array = value.detach().numpy()
        if family == "gpt2" and re.search(r"(attention|mlp)\..*weight$", ours):
            array = array.T  # Conv1D
        _put(arrays, family, ours, array, config)
    if config.lm_head_bias and "lm_head.bias" not in arrays:
        arrays["lm_head.bias"] = model.get_output_embeddings().bias.detach().numpy()
    if config.tie_word_embeddings:
        arrays.pop("lm_head.weight", None)
    return arrays


def _put(arrays: Arrays, family: str, name: str, array: np.ndarray, config: ms_gptmodel.ModelConfig) -> None:
    """Adds one array, cut where theirs is fused."""
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    end = name.rpartition(".")[2]
    block = name.partition(".attention")[0].partition(".mlp")[0]
    if "c_attn" in name:
        for part, rows in zip(("query", "key", "value"), np.split(array, 3), strict=True):
            arrays[f"{block}.attention.{part}.{end}"] = rows
    elif "query_key_value" in name:
        per_group = heads // groups
        fused = array.reshape(groups, per_group + 2, width, *array.shape[1:])
        parts = {"query": fused[:, :per_group], "key": fused[:, per_group], "value": fused[:, per_group + 1]}
        for part, rows in parts.items():
            arrays[f"{block}.attention.{part}.{end}"] = rows.reshape(-1, *array.shape[1:])
    elif "gate_up_proj" in name:
        half = array.shape[1] // 2
        arrays[f"{block}.mlp.experts.gate.weight"] = array[:, :half]
        arrays[f"{block}.mlp.experts.up.weight"] = array[:, half:]
    elif "experts.down_proj" in name:
        arrays[f"{block}.mlp.experts.down.weight"] = array
    else:
        arrays[name] = array


def their_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(ids.astype(np.int64))).logits.float().numpy()


def our_logits(config: ms_gptmodel.ModelConfig, arrays: Arrays, *inputs: np.ndarray) -> np.ndarray:
    from mindspore import Tensor

    model = ms_gptmodel.LanguageModel(config)
    ms_gptmodel.load_weights(model, arrays)
    return model(*map(Tensor, inputs)).asnumpy().copy()


def difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).max() / max(1.0, np.abs(first).max()))


def some_ids() -> np.ndarray:
    return np.random.default_rng(3).integers(3, 48, (2, LENGTH)).astype(np.int32)


@pytest.fixture(scope="module", autouse=True)
def _graph_mode() -> None:
    import mindspore

    mindspore.set_context(mode=mindspore.GRAPH_MODE)


@pytest.fixture
def pynative() -> Iterator[None]:
    """Where a graph would be compiled to run once; that both modes agree, ms-gptmodel's own tests show."""
    import mindspore

    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    mindspore.set_context(mode=mindspore.GRAPH_MODE)


@pytest.fixture(scope="module")
def ids() -> np.ndarray:
    return some_ids()


@pytest.fixture(scope="module")
def pair(ids: np.ndarray) -> Any:
    """Each model once: its config as we read it, its weights as we name them, transformers' logits."""
    made: dict[str, tuple[Any, Arrays, np.ndarray]] = {}

    def get(name: str) -> tuple[Any, Arrays, np.ndarray]:
        if name not in made:
            model = their_model(name)
            config = ms_gptmodel.from_huggingface(their_config(name, model))
            made[name] = config, our_arrays(name, model, config), their_logits(model, ids)
        return made[name]

    return get


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(pair, ids, name):
    config, arrays, logits = pair(name)

    assert 0.3 < np.abs(logits).max() < 40
    assert difference(logits, our_logits(config, arrays, ids)) < TOLERANCE


DEPENDS_ON_LENGTH = {"llama dynamic", "llama longrope"}  # a longer row has other frequencies, there as here


@pytest.mark.parametrize("name", [name for name in MODELS if name not in DEPENDS_ON_LENGTH])
def test_packed_documents_have_the_logits_that_transformers_gives_each_alone(pair, ids, name, pynative):
    config, arrays, _ = pair(name)
    model, (first, second) = their_model(name), (29, 11)
    segments = np.array([[1] * first + [2] * second] * 2, np.int32)
    positions = np.array([[*range(first), *range(second)]] * 2, np.int32)

    ours = our_logits(config, arrays, ids, positions, segments)

    assert difference(their_logits(model, ids[:, :first]), ours[:, :first]) < TOLERANCE
    assert difference(their_logits(model, ids[:, first:]), ours[:, first:]) < TOLERANCE


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_loss_and_gradients_equal_those_of_transformers(ids, name):
    import torch
    from mindspore import Tensor, nn, ops

    class Loss(nn.Cell):
        def __init__(self, model: Any) -> None:
            super().__init__(auto_prefix=False)
            self.model = model

        def construct(self, ids: Any, labels: Any) -> Any:
            total, count = ms_gptmodel.token_loss(self.model(ids), labels)
            return total / count

    theirs = their_model(name)
    config = ms_gptmodel.from_huggingface(their_config(name, theirs))
    ours = ms_gptmodel.LanguageModel(config)
    ms_gptmodel.load_weights(ours, our_arrays(name, theirs, config))
    labels = np.roll(ids, -1, 1)
    labels[:, -1] = -100

    logits = theirs(torch.from_numpy(ids.astype(np.int64))).logits
    flat_labels = torch.from_numpy(labels.astype(np.int64)).flatten()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), flat_labels)
    expected.backward()
    parameters = ms_gptmodel.named_parameters(ours)
    step = ops.value_and_grad(Loss(ours), None, list(parameters.values()))
    loss, gradients = step(Tensor(ids), Tensor(labels))

    for parameter in theirs.parameters():
        parameter.data = parameter.grad
    their_gradients = our_arrays(name, theirs, config)
    assert abs(float(loss.asnumpy()) - expected.item()) < TOLERANCE
    for (key, _), gradient in zip(parameters.items(), gradients, strict=True):
        assert np.abs(gradient.asnumpy() - their_gradients[key]).max() < TOLERANCE, key


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_files_are_what_transformers_computes(pair, ids, name):
    """The files that ms-gptmodel's own tests use where there is no transformers; `--write` makes them."""
    _, arrays, logits = pair(name)
    golden = np.load(GOLDEN_FOLDER / f"{name.replace(' ', '_')}.npz")

    np.testing.assert_array_equal(golden["ids"], ids)
    np.testing.assert_allclose(golden["logits"], logits, rtol=0, atol=TOLERANCE)
    assert {key for key in golden.files if "/" in key} == {f"weights/{key}" for key in arrays}
    assert all(np.array_equal(golden[f"weights/{key}"], array) for key, array in arrays.items())


def write_golden_files() -> None:
    """Writes them anew: config.json of transformers, our weights as float16, ids and transformers' logits."""
    GOLDEN_FOLDER.mkdir(exist_ok=True)
    for name in GOLDEN:
        model = their_model(name)
        values = their_config(name, model)
        arrays = our_arrays(name, model, ms_gptmodel.from_huggingface(values))
        weights = {f"weights/{key}": array.astype(np.float16) for key, array in arrays.items()}
        logits = their_logits(model, some_ids())
        path = GOLDEN_FOLDER / f"{name.replace(' ', '_')}.npz"
        np.savez_compressed(path, config=np.array(json.dumps(values)), ids=some_ids(), logits=logits, **weights)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {Path(__file__).name} --write")
    write_golden_files()
