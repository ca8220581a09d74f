"""An independent reference of the forward pass in numpy float64, and tiny models of every family."""

import math
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from ms_gptmodel import LanguageModel, ModelConfig, load_weights, named_parameters

SIZE = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
}
GPT2 = {
    "model_type": "gpt2",
    "norm_kind": "layer_norm",
    "norm_bias": True,
    "position_kind": "learned",
    "hidden_act": "gelu_new",
    "gated_mlp": False,
    "attention_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
}
STRETCH = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
FAMILIES = {
    "gpt2": GPT2,
    "llama": {"num_key_value_heads": 2},
    "llama_linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3": {
        "num_key_value_heads": 3,
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, **STRETCH},
    },
    "qwen2": {
        "num_key_value_heads": 2,
        "attention_bias": True,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    },
    "qwen3": {"num_key_value_heads": 3, "qk_norm": True, "head_dim": 16, "rope_theta": 1000000.0},
    "all_biases": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    "alibi": {**GPT2, "position_kind": "alibi", "tie_word_embeddings": False},
    "sliding": {
        "num_key_value_heads": 2,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_local_base_freq": 500.0,
        "norm_placement": "sandwich",
        "attn_logit_softcapping": 20.0,
        "num_experts": 3,
        "mlp_only_layers": [1],
    },
    "relu": {**GPT2, "hidden_act": "relu", "norm_bias": False, "tie_word_embeddings": False},
}


@pytest.fixture(scope="session", autouse=True)
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


@pytest.fixture(scope="session")
def contracts():
    return Path(__file__).parents[3] / "integration_tests" / "contracts"


@pytest.fixture(scope="session")
def families():
    return {name: {**SIZE, **switches} for name, switches in FAMILIES.items()}


@pytest.fixture(scope="session")
def random_weights():
    """All weights of std 0.08, norms and biases random too, as float32 arrays by contract name."""

    def make(model, seed=0):
        generator = np.random.default_rng(seed)
        arrays = {}
        for name, parameter in named_parameters(model).items():
            values = generator.standard_normal(parameter.shape) * 0.08
            arrays[name] = (values + 1.0 if name.endswith("norm.weight") else values).astype(np.float32)
        return arrays

    return make


@pytest.fixture(scope="session")
def model_of(families, random_weights):
    """(model, its weights) of a family; one instance a session."""
    made = {}

    def make(name):
        if name not in made:
            model = LanguageModel(ModelConfig.from_mapping(families[name]))
            arrays = random_weights(model)
            load_weights(model, arrays)
            made[name] = (model, arrays)
        return made[name]

    return make


@pytest.fixture(scope="session")
def packed():
    """Two rows of 40: documents of 33 and 7, and of 12, 20 and 8 of padding."""
    ids = np.random.default_rng(5).integers(0, SIZE["vocab_size"], (2, 40)).astype(np.int32)
    segments = np.array([[1] * 33 + [2] * 7, [1] * 12 + [2] * 20 + [0] * 8], np.int32)
    positions = np.array([[*range(33), *range(7)], [*range(12), *range(20), *[0] * 8]], np.int32)
    ids[1, 32:] = 0
    return ids, positions, segments


@pytest.fixture(scope="session")
def reference():
    return reference_logits


def reference_logits(config, weights, ids, positions=None, segments=None, mutation=""):
    """Logits in float64, one row, one head, one query at a time; `mutation` names a mistake to make."""
    c = {"num_key_value_heads": config["num_attention_heads"], "rope_theta": 10000.0, **config}
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    width = c.get("head_dim", c["hidden_size"] // heads)
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    is_layer_norm = c.get("norm_kind") == "layer_norm"
    eps = 1e-3 if mutation == "eps" else c.get("rms_norm_eps", 1e-5)
    if mutation == "query_key_swapped":
        for n in range(c["num_hidden_layers"]):
            q, k = f"blocks.{n}.attention.query.weight", f"blocks.{n}.attention.key.weight"
            w[q], w[k] = w[k], w[q]

    def linear(x, name):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w and mutation != "no_bias" else y

    def norm(x, name, layer=is_layer_norm):
        if layer:
            x = x - (0 if mutation == "no_mean" else x.mean(-1, keepdims=True))
            y = x / np.sqrt((x * x).mean(-1, keepdims=True) + c.get("layer_norm_eps", 1e-5)) * w[name + ".weight"]
            return y + w[name + ".bias"] if name + ".bias" in w else y
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[name + ".weight"]

    def act(x):
        kind = c.get("hidden_act", "silu")
        kind = {"gelu": "gelu_new", "gelu_new": "gelu"}.get(kind, "gelu") if mutation == "activation" else kind
        if kind == "silu":
            return x / (1 + np.exp(-x))
        if kind == "relu":
            return np.maximum(x, 0)
        if kind == "gelu":
            return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def frequency(pair):
        f = c["rope_theta"] ** (-2 * pair / width)
        s = c.get("rope_scaling") if mutation != "no_rope_scaling" else None
        if not s:
            return f
        if s["rope_type"] == "linear":
            return f / s["factor"]
        wave, old = 2 * math.pi / f, s["original_max_position_embeddings"]
        low, high = s["low_freq_factor"], s["high_freq_factor"]
        if wave < old / high:
            return f
        if wave > old / low:
            return f / s["factor"]
        smooth = (old / wave - low) / (high - low)
        return (1 - smooth) * f / s["factor"] + smooth * f

    def rotate(x, position):
        y = x.copy()
        for pair in range(width // 2):
            a, b = (2 * pair, 2 * pair + 1) if mutation == "interleaved" else (pair, pair + width // 2)
            angle = position * frequency(pair) * (-1 if mutation == "rotation_sign" else 1)
            y[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
            y[b] = x[b] * math.cos(angle) + x[a] * math.sin(angle)
        return y

    batch, length = ids.shape
    positions = np.tile(np.arange(length), (batch, 1)) if positions is None else positions
    segments = np.ones_like(ids) if segments is None or mutation == "no_segments" else segments
    logits = np.empty((batch, length, c["vocab_size"]))
    for b in range(batch):
        x = w["embedding.weight"][ids[b]]
        if c.get("position_kind") == "learned":
            x = x + w["position_embedding.weight"][positions[b] if mutation != "no_restart" else np.arange(length)]
        for n in range(c["num_hidden_layers"]):
            at = f"blocks.{n}.attention"
            y = norm(x, f"blocks.{n}.attention_norm")
            q = linear(y, at + ".query").reshape(length, heads, width)
            k = linear(y, at + ".key").reshape(length, -1, width)
            v = linear(y, at + ".value").reshape(length, groups, width)
            if c.get("qk_norm") and mutation != "no_qk_norm":
                q, k = norm(q, at + ".query_norm", False), norm(k, at + ".key_norm", False)
            if c.get("position_kind") != "learned":
                q = np.array([[rotate(q[t, h], positions[b, t]) for h in range(heads)] for t in range(length)])
                k = np.array([[rotate(k[t, h], positions[b, t]) for h in range(groups)] for t in range(length)])
            out = np.zeros((length, heads, width))
            for t in range(length):
                seen = [s for s in range(t + 1) if segments[b, s] == segments[b, t]]
                for h in range(heads):
                    g = h % groups if mutation == "group_order" else h // (heads // groups)
                    score = k[seen, g] @ q[t, h] / (1 if mutation == "no_scale" else math.sqrt(width))
                    p = np.exp(score - score.max())
                    out[t, h] = (p / p.sum()) @ v[seen, g]
            x = x + linear(out.reshape(length, -1), at + ".output")
            y = norm(x, f"blocks.{n}.mlp_norm")
            up = linear(y, f"blocks.{n}.mlp.up")
            if c.get("gated_mlp", True):
                gate = linear(y, f"blocks.{n}.mlp.gate")
                up, gate = (gate, up) if mutation == "gate_up_swapped" else (up, gate)
                up = act(gate) * up
            else:
                up = act(up)
            x = x + linear(up, f"blocks.{n}.mlp.down")
        if mutation != "no_final_norm":
            x = norm(x, "norm")
        head = w.get("lm_head.weight", w["embedding.weight"])
        logits[b] = x @ head.T
    return logits
