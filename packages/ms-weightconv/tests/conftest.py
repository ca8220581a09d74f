"""Tiny models in Hugging Face's layout, written and read by the tests themselves and not by the package."""

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent))  # pytest's import mode leaves a file beside the tests out of it

from layouts import expected_tensors

WORDS = {"F32": "<u4", "F16": "<u2", "BF16": "<u2", "F64": "<u8", "I64": "<u8", "BOOL": "|u1"}
LLAMA = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "rope_theta": 10000.0, "rope_scaling": None, "initializer_range": 0.02, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 40, "n_embd": 16, "n_layer": 2,
        "n_head": 4, "n_positions": 32, "n_inner": None, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
        "activation_function": "gelu_new", "bos_token_id": 39, "eos_token_id": 39, "attn_pdrop": 0.1,
        "summary_type": "cls_index",
    },
    "llama": LLAMA | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 4,
                      "attention_bias": True, "mlp_bias": True},
    "llama3": LLAMA | {
        "model_type": "llama", "eos_token_id": [2, 3], "rope_theta": 500000.0, "attention_dropout": 0.1,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 16},
    },
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": None, "head_dim": 6},
    "qwen2": LLAMA | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 8, "max_window_layers": 2,
                      "tie_word_embeddings": True},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 8, "attention_bias": False, "rope_theta": 1e6},
}  # fmt: skip

GOLDEN = json.loads((Path(__file__).parent / "golden" / "families.json").read_text())
"""Configs, names and shapes as transformers 5.24 wrote them for tiny models of the other families."""
CONFIGS |= {name: entry["config"] for name, entry in GOLDEN.items()}


def write_tensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, words) in tensors.items():
        assert words.dtype == np.dtype(WORDS[dtype])
        end = len(data) + words.nbytes
        header[name] = {"dtype": dtype, "shape": list(words.shape), "data_offsets": [len(data), end]}
        data += words.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_tensors(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            words = np.frombuffer(content[8 + size + start : 8 + size + end], WORDS[entry["dtype"]])
            tensors[name] = (entry["dtype"], words.reshape(entry["shape"]))
    return tensors


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes as transformers writes them."""
    if config["model_type"] == "gpt2":
        hidden, shapes = config["n_embd"], {"transformer.wte.weight": (config["vocab_size"], config["n_embd"])}
        shapes["transformer.wpe.weight"] = (config["n_positions"], hidden)
        for layer in range(config["n_layer"]):
            block = f"transformer.h.{layer}."
            for norm in ("ln_1", "ln_2"):
                shapes |= {f"{block}{norm}.weight": (hidden,), f"{block}{norm}.bias": (hidden,)}
            for name, rows, columns in (
                ("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
                ("mlp.c_fc", hidden, 4 * hidden), ("mlp.c_proj", 4 * hidden, hidden),
            ):  # fmt: skip
                shapes |= {f"{block}{name}.weight": (rows, columns), f"{block}{name}.bias": (columns,)}
        return shapes | {"transformer.ln_f.weight": (hidden,), "transformer.ln_f.bias": (hidden,)}
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    query, key = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    has_bias = config.get("attention_bias") or config["model_type"] == "qwen2"
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        shapes |= {f"{block}input_layernorm.weight": (hidden,), f"{block}post_attention_layernorm.weight": (hidden,)}
        for part, width in (("q", query), ("k", key), ("v", key)):
            shapes[f"{block}self_attn.{part}_proj.weight"] = (width, hidden)
            if has_bias:
                shapes[f"{block}self_attn.{part}_proj.bias"] = (width,)
        shapes[f"{block}self_attn.o_proj.weight"] = (hidden, query)
        if config.get("attention_bias"):
            shapes[f"{block}self_attn.o_proj.bias"] = (hidden,)
        if config["model_type"] == "qwen3":
            shapes |= {f"{block}self_attn.{part}_norm.weight": (head,) for part in ("q", "k")}
        for part, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            shapes[f"{block}mlp.{part}_proj.weight"] = (rows, columns)
            if config.get("mlp_bias"):
                shapes[f"{block}mlp.{part}_proj.bias"] = (rows,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


class Folders:
    """Makes and reads tiny folders below a temporary path."""

    configs = CONFIGS
    write = staticmethod(write_tensors)
    shapes_of = staticmethod(shapes_of)
    expected = staticmethod(expected_tensors)

    def __init__(self, root: Path) -> None:
        self.root = root

    def random(
        self, family: str, dtype: str = "F32", config: dict[str, Any] | None = None
    ) -> dict[str, tuple[str, np.ndarray]]:
        """Random words: NaNs, infinities and subnormals among them."""
        shapes = GOLDEN[family]["shapes"] if family in GOLDEN else shapes_of(CONFIGS[family] | (config or {}))
        rng, width = np.random.default_rng(7), np.dtype(WORDS[dtype]).itemsize
        return {
            name: (dtype, np.frombuffer(rng.bytes(int(np.prod(shape)) * width), WORDS[dtype]).reshape(shape))
            for name, shape in shapes.items()
        }

    def huggingface(
        self,
        family: str,
        *,
        name: str = "hf",
        dtype: str = "F32",
        change: Callable[[dict[str, tuple[str, np.ndarray]]], None] | None = None,
        generation: dict[str, Any] | None = None,
        also: dict[str, Any] | None = None,
        **config: Any,
    ) -> Path:
        """Writes a Hugging Face folder; `change` edits its tensors, the rest its config (`...` removes a key)."""
        config |= also or {}
        folder = self.root / name
        folder.mkdir()
        values = {key: value for key, value in (CONFIGS[family] | config).items() if value is not ...}
        sizes = {key: value for key, value in config.items() if value is not ... and key != "model_type"}
        tensors = self.random(family, dtype, sizes)
        if change:
            change(tensors)
        (folder / "config.json").write_text(json.dumps(values))
        if generation is not None:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        write_tensors(folder / "model.safetensors", tensors)
        return folder

    def read(self, folder: Path) -> dict[str, tuple[str, np.ndarray]]:
        """All tensors of all safetensors files of a folder."""
        tensors: dict[str, tuple[str, np.ndarray]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            tensors |= read_tensors(path)
        return tensors

    def json(self, path: Path) -> Any:
        return json.loads(path.read_text(encoding="utf-8"))

    def differences(self, source: Path, target: Path) -> list[str]:
        """Names of tensors of a converted folder that are not what the hand-written layout says."""
        theirs = {name: words for name, (_, words) in self.read(source).items()}
        expected = expected_tensors(self.json(source / "config.json"), theirs)
        found = {name: words for name, (_, words) in self.read(target).items()}
        return sorted(
            name
            for name in {*expected, *found}
            if name not in expected or name not in found or not np.array_equal(expected[name], found[name])
        )

    def assert_same(self, first: Path, second: Path) -> None:
        """Both folders hold the same names, dtypes, shapes and words."""
        left, right = self.read(first), self.read(second)
        assert set(left) == set(right)
        for name, (dtype, words) in left.items():
            assert right[name][0] == dtype, name
            assert np.array_equal(right[name][1], words), name
            assert right[name][1].shape == words.shape, name


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture(scope="session")
def contracts() -> Path:
    return Path(__file__).parents[3] / "integration_tests" / "contracts"
