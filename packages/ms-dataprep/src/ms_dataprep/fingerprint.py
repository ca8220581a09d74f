"""The fingerprint of a tokenizer: a hash over everything that decides how it tokenizes (contract `dataset`)."""

import hashlib
import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any

Tokens = list[tuple[int, str]]


def probe_strings() -> list[str]:
    """The contract's 12 probe strings."""
    probes: list[str] = json.loads(files("ms_dataprep").joinpath("probes.json").read_text("utf-8"))
    return probes


def compute_fingerprint(content: dict[str, Any], encode: Callable[[str], list[int]]) -> str:
    """`sha256:...` of a Hugging Face tokenizer.

    Args:
        content: the parsed tokenizer.json.
        encode: how a document's text is tokenized (no special ids added, special strings as ordinary text).
    """
    model = content["model"]
    to_bytes = _ByteLevel() if is_byte_level(content) else _utf8
    added = sorted((entry["id"], entry["content"]) for entry in content.get("added_tokens") or [])
    added_ids = {number for number, _ in added}
    tokens = {number: to_bytes(token) for number, token in _model_tokens(model) if number not in added_ids}
    tokens |= {number: _utf8(token) for number, token in added}
    facts = {
        "vocabulary": [[number, tokens[number].hex()] for number in sorted(tokens)],
        "merges": [[to_bytes(side).hex() for side in _merge_sides(merge)] for merge in model.get("merges") or []],
        "scores": [repr(float(score)) for _, score in model["vocab"]] if isinstance(model["vocab"], list) else [],
        "special": [list(entry) for entry in added],
        "normalizer": content.get("normalizer"),
        "pre_tokenizer": content.get("pre_tokenizer"),
        "probes": [[text, encode(text)] for text in probe_strings()],
    }
    return hash_facts(facts)


def hash_facts(facts: dict[str, Any]) -> str:
    """`sha256:...` of the contract's facts about a tokenizer, as canonical JSON."""
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()


def is_byte_level(content: dict[str, Any]) -> bool:
    """Whether a parsed tokenizer.json writes bytes as characters: its pre-tokenizer or decoder has `ByteLevel`."""
    return any(kind == "ByteLevel" for part in ("pre_tokenizer", "decoder") for kind in _types(content.get(part)))


def _types(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield value.get("type", "")
        for inner in value.values():
            yield from _types(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _types(inner)


def _model_tokens(model: dict[str, Any]) -> Tokens:
    vocabulary = model["vocab"]
    if isinstance(vocabulary, list):  # Unigram: [token, score] by id
        return [(number, token) for number, (token, _) in enumerate(vocabulary)]
    return [(number, token) for token, number in vocabulary.items()]


def _merge_sides(merge: str | list[str]) -> list[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def _utf8(token: str) -> bytes:
    return token.encode("utf-8")


class _ByteLevel:
    """GPT-2's table between bytes and visible characters, read backwards."""

    def __init__(self) -> None:
        visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = [byte for byte in range(256) if byte not in set(visible)]
        # To Latin-1, which is the bytes; a character that stands for none must not become one.
        self._latin1 = dict.fromkeys(hidden, 0xFFFF)
        self._latin1 |= {256 + place: byte for place, byte in enumerate(hidden)}

    def __call__(self, token: str) -> bytes:
        if token.isascii() and token.isprintable() and " " not in token:
            return token.encode("ascii")
        try:
            return token.translate(self._latin1).encode("latin-1")
        except UnicodeEncodeError:
            return _utf8(token)
