"""Golden file of contract `bundle`: an example of `bundle.json`; graph files are tested live by ms-export."""

from hashlib import sha256
from pathlib import Path
from typing import Any

from golden_writers.document import write_json


def write(folder: Path) -> None:
    """Writes `bundle.json` for a model of 2 layers, 2 key/value heads of 4, in 2 working slots and a scratch slot."""
    graphs = [
        _graph("prefill", "prefill-00008.mindir", 1, "length", 8),
        _graph("prefill", "prefill-00032.mindir", 1, "length", 32),
        _graph("decode", "decode-0001x00032.mindir", 1, "window", 32),
        _graph("decode", "decode-0002x00032.mindir", 2, "window", 32),
    ]
    names = ["model.safetensors", *(graph["file"] for graph in graphs), "tokenizer.json", "parity.npz"]
    value = {
        "format": "ms-export.bundle",
        "version": 1,
        "checksum": "sha256:" + "0" * 64,
        "created_by": "make_golden.py 1",
        "mindspore_version": "2.10.0",
        "precision": "float32",
        "vocab_size": 64,
        "files": {name: {"bytes": 1000 + i, "sha256": f"sha256:{i + 1:064x}"} for i, name in enumerate(names)},
        "graphs": graphs,
        "cache": {
            "slots": 3,
            "max_length": 32,
            "num_layers": 2,
            "num_key_value_heads": 2,
            "head_dim": 4,
            "dtype": "float32",
            "parameters": ["cache.0.key", "cache.0.value", "cache.1.key", "cache.1.value"],
        },
        "tokenizer": {"file": "tokenizer.json", "kind": "huggingface", "fingerprint": f"sha256:{2**200:064x}"},
        "generation": {
            "eos_token_ids": [2, 3],
            "bos_token_id": 1,
            "pad_token_id": None,
            "max_new_tokens": 16,
            "temperature": 0.0,
            "top_k": 0,
            "top_p": 1.0,
        },
        "model": {"format": "ms-gptmodel.config", "version": 1, "hidden_size": 16},
        "parity": {"file": "parity.npz", "tolerance": 1e-5, "max_abs_difference": 3.5e-7},
    }
    path = folder / "bundle.json"
    write_json(path, value)
    zeroed = path.read_bytes()
    path.write_bytes(zeroed.replace(b"0" * 64, sha256(zeroed).hexdigest().encode(), 1))


def _graph(kind: str, file: str, batch: int, extent: str, size: int) -> dict[str, Any]:
    second = "lengths" if kind == "prefill" else "positions"
    inputs = [_array("input_ids", "int32", [batch, size if kind == "prefill" else 1])]
    inputs += [_array(name, "int32", [batch]) for name in (second, "slots")]
    outputs = [_array("logits", "float32", [batch, 64])]
    return {"kind": kind, "file": file, "batch": batch, extent: size, "inputs": inputs, "outputs": outputs}


def _array(name: str, dtype: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": shape}
