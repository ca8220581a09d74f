import struct
from contextlib import suppress

import numpy as np
import pytest
from ms_weightconv import convert, prove
from ms_weightconv.errors import ConfigError, SourceError, WeightConvError
from ms_weightconv.gguffile import read_gguf_file

KINDS = {"F32": 0, "F16": 1, "BF16": 30}


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def gguf(metadata, tensors, *, version=3, alignment=32):
    """A file as llama.cpp writes it; tensors are (ggml type, extents, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(pair(key, value) for key, value in metadata.items())
    data = b""
    for name, (kind, shape, content) in tensors.items():
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape[::-1])
        head += struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % alignment)
    return head + bytes(-len(head) % alignment) + data


def metadata_of(config, kind):
    return {
        "general.architecture": kind, f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.block_count": config["num_hidden_layers"], f"{kind}.context_length": 64,
        f"{kind}.feed_forward_length": config["intermediate_size"], f"{kind}.attention.head_count": 4,
        f"{kind}.attention.head_count_kv": 2, f"{kind}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{kind}.rope.freq_base": float(config["rope_theta"]),
        f"{kind}.attention.key_length": config.get("head_dim") or 4, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.tokens": ["a", "b", "ü"],
    }  # fmt: skip


NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write(folders, family, kind, dtype="F32"):
    """A GGUF file of a tiny Hugging Face model; llama's queries and keys go into Meta's order, head by head."""
    plain = {"attention_bias": False, "mlp_bias": False} if family == "llama" else {}  # GGUF has no names for these
    source = folders.huggingface(family, dtype=dtype, **plain)
    config, tensors = folders.json(source / "config.json"), {}
    for name, (_, words) in folders.read(source).items():
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = [head.reshape(2, -1, *head.shape[1:]) for head in np.split(words, len(words) // 4)]
            words = np.concatenate([np.stack([head[0], head[1]], 1).reshape(-1, *words.shape[1:]) for head in heads])
        for old, new in NAMES.items():
            name = name.replace(old, new)
        tensors[name] = (KINDS[dtype], words.shape, words.tobytes())
    path = folders.root / "model.gguf"
    path.write_bytes(gguf(metadata_of(config, kind), tensors))
    return source, path


@pytest.mark.parametrize(("family", "kind"), [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_gguf_file_gives_the_weights_of_the_hugging_face_folder(folders, family, kind, dtype):
    source, path = write(folders, family, kind, dtype)

    convert(path, folders.root / "ours", to="mindspore", progress=False)
    convert(source, folders.root / "expected", to="mindspore", progress=False)

    folders.assert_same(folders.root / "expected", folders.root / "ours")
    ours, expected = (folders.json(folders.root / name / "config.json") for name in ("ours", "expected"))
    assert ours == expected
    prove(source, path, progress=False)


def test_a_config_can_be_given_and_what_needs_one_says_so(folders):
    source, path = write(folders, "qwen3", "qwen3")
    content = path.read_bytes()
    path.write_bytes(content.replace(b"qwen3.block_count", b"qwen3.block_coun_"))

    with pytest.raises(ConfigError, match=r"missing qwen3\.block_count"):
        convert(path, folders.root / "ours", to="mindspore", progress=False)
    report = convert(path, folders.root / "ours", to="huggingface", config=source, progress=False)

    assert report.layouts == ("gguf", "huggingface")
    folders.assert_same(source, folders.root / "ours")
    path.write_bytes(content.replace(b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0qwen3",
                                     b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba"))  # fmt: skip
    with pytest.raises(ConfigError, match=r"general\.architecture 'mamba'; GGUF is read for llama, qwen2, qwen3"):
        convert(path, folders.root / "other", to="mindspore", progress=False)


def test_quantized_tensors_ask_for_the_extra_by_its_line(tmp_path, monkeypatch):
    path = tmp_path / "x.gguf"
    path.write_bytes(gguf({}, {"a": (8, (2, 32), bytes(68))}))
    monkeypatch.setitem(__import__("sys").modules, "gguf.quants", None)

    with pytest.raises(SourceError, match=r'pip install "ms-weightconv\[gguf\]"'):
        read_gguf_file(path)


GOOD = gguf({"a": "b", "list": ["x", "y"], "n": 3}, {"t": (0, (2, 3), bytes(24)), "u": (1, (4,), bytes(8))})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"GGUF", "4 bytes"),
        (b"GGML" + GOOD[4:], "begins with b'GGML'"),
        (gguf({}, {}, version=1), "version 1"),
        (GOOD[:60], "cut short"),
        (GOOD[:-40], "ends behind the end"),
        (GOOD[:8] + struct.pack("<QQ", 1 << 60, 3) + GOOD[24:], "GGUF|bytes at byte|a text of|axes|type"),
        (GOOD[:16] + struct.pack("<Q", 1 << 60) + GOOD[24:], "metadata of type|bytes at byte|a text of"),
        (GOOD[:24] + struct.pack("<Q", 1 << 62) + GOOD[32:], "a text of"),
        (gguf({"general.alignment": 0}, {}), "general.alignment is 0"),
        (gguf({}, {"t": (99, (2,), bytes(8))}), "ggml type 99, which is not read"),
        (gguf({}, {"t": (8, (2, 3), bytes(8))}), "no multiple of 32"),
        (gguf({}, {"t": (0, (1, 1, 1, 1, 1), bytes(8))}), "5 axes"),
        (gguf({}, {"t": (0, (1 << 50,), bytes(8))}), "has shape"),
        (gguf({}, {"t": (0, (1 << 39, 1 << 39), bytes(8))}), "ends behind the end"),
    ],
)
def test_damaged_and_hostile_files_are_refused_by_name(tmp_path, content, expected):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)

    with pytest.raises(SourceError, match=expected) as error:
        read_gguf_file(path)
    assert str(path) in str(error.value)


def test_overlaps_and_doubles_are_refused_and_any_flipped_byte_is_harmless(tmp_path):
    path = tmp_path / "x.gguf"
    at = GOOD.index(b"u" + struct.pack("<IQI", 1, 4, 1)) + 17
    path.write_bytes(GOOD[:at] + struct.pack("<Q", 0) + GOOD[at + 8 :])
    with pytest.raises(SourceError, match=r"t overlaps u|u overlaps t"):
        read_gguf_file(path)
    path.write_bytes(GOOD.replace(b"\x01\0\0\0\0\0\0\0u", b"\x01\0\0\0\0\0\0\0t"))
    with pytest.raises(SourceError, match="t is in the file twice"):
        read_gguf_file(path)

    for position in range(len(GOOD)):
        for bit in (1, 64, 128):
            changed = bytearray(GOOD)
            changed[position] ^= bit
            path.write_bytes(changed)
            with suppress(WeightConvError):
                for tensor in read_gguf_file(path).tensors.values():
                    tensor.read()
