"""Golden files of contract `checkpoint`: a whole checkpoint of two ranks, byte by byte."""

import json
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from golden_writers.document import write_json

_STEP = 3
_EMBEDDING = (np.arange(20, dtype="<f4").reshape(5, 4) - 7.5) / np.float32(3)
_MOMENT = np.sqrt(np.arange(20, dtype="<f4")).reshape(5, 4) * np.float32(1e-30)
# 1.5, -0.0, inf, NaN with a payload, a signalling NaN, the smallest subnormal, 1.0
_BF16_WORDS = np.array([0x3FC0, 0x8000, 0x7F80, 0x7FC5, 0xFF81, 0x0001, 0x3F80], "<u2")

# name -> (dtype, whole array, [(rank, rows, columns or None)]); rows and columns are half-open ranges
_TENSORS: dict[str, tuple[str, np.ndarray, list[tuple[int, tuple[slice, ...]]]]] = {
    "model.embedding.weight": ("F32", _EMBEDDING, [(0, (slice(0, 3),)), (1, (slice(3, 5),))]),
    "model.norm.weight": ("BF16", _BF16_WORDS, [(0, ())]),
    "optimizer.exp_avg.embedding.weight": (
        "F32",
        _MOMENT,
        [(1, (slice(0, 5), slice(0, 2))), (1, (slice(0, 5), slice(2, 4)))],
    ),
    "optimizer.exp_avg.norm.weight": ("F16", np.array([0.5, -65504, 6e-8], "<f2"), [(0, ())]),
    "optimizer.step": ("I64", np.array(2**40 + 3, "<i8"), [(0, ())]),
    "other.empty": ("F32", np.zeros((0, 4), "<f4"), [(0, ())]),
    "other.mask": ("BOOL", np.array([True, False, True]), [(1, ())]),
}
_VALUES: dict[str, Any] = {
    "samples_consumed": 96,
    "epoch": 1,
    "loss_scale": 65536.0,
    "learning_rate": 1e-4,
    "floats": [0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 2.0, 1 / 3],
    "integers": [0, -1, 2**53 + 1, 2**64 - 1, -(2**63)],
    "random_state": {"seed": 1234},
    "tokenizer_fingerprint": "sha256:" + "0123456789abcdef" * 4,
    "nothing": None,
    "flags": [True, False],
    "text": '训练 "quoted" \\ \n\t é 👩‍🚀 \u2028',
    "empty": {"list": [], "object": {}, "text": ""},
    "config": {"train": {"learning_rate": 3e-4, "betas": [0.9, 0.95]}, "名": "值"},
}


def write(folder: Path) -> None:
    """Writes `v1/step-00000003/` and `expected.json` (whole tensors in hex, floats in hex too)."""
    step = folder / "v1" / f"step-{_STEP:08d}"
    step.mkdir(parents=True, exist_ok=True)
    files, chunks = {}, {name: [] for name in _TENSORS}  # type: ignore[var-annotated]
    for rank in (0, 1):
        name = f"rank-{rank:05d}.safetensors"
        content, header_bytes = _rank_file(name, rank, chunks)
        (step / name).write_bytes(content)
        header_checksum = _crc(content[:header_bytes])
        files[name] = {"bytes": len(content), "header_bytes": header_bytes, "header_checksum": header_checksum}
    tensors = {
        name: {"dtype": dtype, "shape": list(array.shape), "chunks": chunks[name]}
        for name, (dtype, array, _) in _TENSORS.items()
    }
    index = {"format": "ms-ckpt.index", "version": 1, "step": _STEP, "files": files, "tensors": tensors}
    write_json(step / "index.json", index)
    write_json(step / "state.json", {"format": "ms-ckpt.state", "version": 1, "step": _STEP, "values": _VALUES})
    lines = [f"sha256:{sha256((step / n).read_bytes()).hexdigest()} {n}\n" for n in ("index.json", "state.json")]
    (step / "COMMIT").write_bytes(("ms-ckpt.commit 1\n" + "".join(lines)).encode("ascii"))
    whole = {
        name: {"dtype": dtype, "shape": list(array.shape), "hex": array.tobytes().hex()}
        for name, (dtype, array, _) in _TENSORS.items()
    }
    floats = [value.hex() for value in _VALUES["floats"]]
    write_json(folder / "expected.json", {"step": _STEP, "tensors": whole, "values": _VALUES, "floats_as_hex": floats})


def _rank_file(file: str, rank: int, chunks: dict[str, list[dict[str, Any]]]) -> tuple[bytes, int]:
    """One safetensors file; adds its chunks to the index."""
    header, data = {}, b""
    for name, (dtype, array, parts) in sorted(_TENSORS.items(), key=lambda item: -item[1][1].itemsize):
        for number, slices in enumerate(slices for owner, slices in parts if owner == rank):
            piece = np.ascontiguousarray(array[slices]) if slices else array
            content = piece.tobytes()
            key = f"{name}#{number}" if number else name
            offset = [*(s.start for s in slices), *[0] * (array.ndim - len(slices))]
            shape = list(piece.shape)
            header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            chunk = {"file": file, "key": key, "offset": offset, "shape": shape, "checksum": _crc(content)}
            chunks[name].append(chunk)
            data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data, 8 + len(text)


def _crc(content: bytes) -> str:
    return f"crc32:{crc32(content):08x}"
