"""The golden tokenizer, written key by key, and the fingerprint of contract `dataset`."""

import json
from hashlib import sha256
from pathlib import Path

from tokenizers import Tokenizer

_PROBES = Path(__file__).parents[1] / "dataset" / "probes.json"
_WORDS = ("the", " the", " cat", " and", "ing", "er", " a", " of", "on", "人", "工", "智能", "。", "世界", " re", "  ")
_EOD = "<|endoftext|>"


def tokenizer_json() -> str:
    """A byte-level BPE `tokenizer.json`: 256 bytes, the merges that spell a few words, `<|endoftext|>` as last id."""
    alphabet = _byte_characters()
    vocabulary = sorted(alphabet.values())
    merges: list[list[str]] = []
    for word in _WORDS:
        left, *rest = (alphabet[byte] for byte in word.encode())
        for right in rest:
            if [left, right] not in merges:
                merges.append([left, right])
                vocabulary.append(left + right)
            left += right
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    value = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(vocabulary), "content": _EOD, **flags}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(vocabulary)},
            "merges": merges,
        },
    }
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"


def load_tokenizer(text: str) -> Tokenizer:
    """The tokenizer as documents are tokenized: special strings are ordinary text."""
    tokenizer = Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True
    return tokenizer


def fingerprint(text: str) -> str:
    """The contract's fingerprint of a byte-level `tokenizer.json`."""
    value, tokenizer = json.loads(text), load_tokenizer(text)
    to_byte = {character: byte for byte, character in _byte_characters().items()}
    added = {entry["id"]: entry["content"] for entry in value["added_tokens"]}
    pieces = {index: token for token, index in value["model"]["vocab"].items()}

    def as_bytes(token: str) -> str:
        known = all(character in to_byte for character in token)
        return bytes(to_byte[c] for c in token).hex() if known else token.encode().hex()

    vocabulary = {index: as_bytes(token) for index, token in pieces.items()}
    vocabulary |= {index: content.encode().hex() for index, content in added.items()}
    probes = json.loads(_PROBES.read_text(encoding="utf-8"))
    canonical = {
        "vocabulary": [[index, vocabulary[index]] for index in sorted(vocabulary)],
        "merges": [[as_bytes(left), as_bytes(right)] for left, right in value["model"]["merges"]],
        "scores": [],
        "special": [[index, added[index]] for index in sorted(added)],
        "normalizer": value["normalizer"],
        "pre_tokenizer": value["pre_tokenizer"],
        "probes": [[probe, tokenizer.encode(probe, add_special_tokens=False).ids] for probe in probes],
    }
    document = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"sha256:{sha256(document.encode('ascii')).hexdigest()}"


def _byte_characters() -> dict[int, str]:
    """GPT-2's printable stand-ins: bytes that print stand for themselves, the others count up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + place) for place, b in enumerate(hidden)}
