"""Hugging Face tokenizers: text is only ever text, documents have an end, long ones take linear time."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.errors import TokenizerError
from ms_dataprep.fast_encoder import FastEncoder, find_fast_encoder
from ms_dataprep.fingerprint import compute_fingerprint

# In order of preference; only tokens that the file itself declares are considered.
_EOD_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "[EOS]",
)
_PAD_NAMES = ("<pad>", "[PAD]", "<|pad|>", "<｜▁pad▁｜>", "<|finetune_right_pad_id|>")
_BOS_NAMES = ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<｜begin▁of▁sentence｜>", "[BOS]")

# Texts above the first size are encoded in pieces cut between a letter and white space, or a line end and a letter,
# where no usual pre-tokenizer joins the two sides; without such a place, at the second size wherever that is.
_PIECE_CHARACTERS = 1 << 16
_LONGEST_PIECE = 1 << 18
_CUT = re.compile(r"(?<=[^\W\d_])(?=\s)|(?<=\S\n)(?=[^\W\d_])")
_CUT_SAMPLE = "The quick brown fox\njumps  over\n\n the lazy dog's\ttail, 世界 ok \r\nend。\n世界"

# Encoded at a time: the library keeps about 150 bytes for each id until its ids are taken.
_GROUP_CHARACTERS = 1 << 21


class HuggingFaceTokenizer:
    """A loaded tokenizer.json; see `tokenizer.Tokenizer`."""

    kind = "huggingface"

    def __init__(
        self, path: Path, *, eod_token: str | None = None, eod_id: int | None = None, backend: str = "reference"
    ) -> None:
        """Raises TokenizerError for a file that cannot be used, or where `fast` is asked for and cannot be had."""
        self.path = path
        text, content = _read_json(path)
        self._digest = hashlib.sha256(text.encode("utf-8")).digest()
        added = {entry["content"]: entry["id"] for entry in content.get("added_tokens") or []}
        self._inner = _load_inner(path, text)
        self.vocab_size: int = max(self._inner.get_vocab(with_added_tokens=True).values()) + 1
        declared = _declared_names(path)
        if eod_token is None and eod_id is None:
            eod_id = _dataset_eod(path)
        self.eod_id = self._find_eod(added, declared.get("eos_token"), eod_token, eod_id)
        pad_id = _find(added, declared.get("pad_token"), _PAD_NAMES)
        self.pad_id = None if pad_id == self.eod_id else pad_id
        self.bos_id = _find(added, declared.get("bos_token"), _BOS_NAMES)
        structural = [
            entry for entry in content.get("added_tokens") or [] if entry["id"] in (self.eod_id, pad_id, self.bos_id)
        ]
        if not all(entry["special"] for entry in structural):
            ids = [token["id"] for token in structural]
            marked = [  # so that encode_special_tokens covers them: in a text they are text
                {**entry, "special": entry["special"] or entry["id"] in ids} for entry in content["added_tokens"]
            ]
            self._inner = _load_inner(path, json.dumps({**content, "added_tokens": marked}))
        self._has_safe_cuts = content.get("pre_tokenizer") is not None and all(
            self._encode_piece(_CUT_SAMPLE)
            == self._encode_piece(_CUT_SAMPLE[: place.start()]) + self._encode_piece(_CUT_SAMPLE[place.start() :])
            for place in _CUT.finditer(_CUT_SAMPLE)
        )
        self._refuse_ending_text()
        self._fast: FastEncoder | None = None
        if backend != "reference":
            structural_ids = {entry["id"] for entry in structural}
            self._fast = find_fast_encoder(content, structural_ids, self.encode_batch, is_required=backend == "fast")

    @cached_property
    def fingerprint(self) -> str:
        """`sha256:...`; takes seconds for a large vocabulary, so it is computed when it is first asked for."""
        text, content = _read_json(self.path)
        if hashlib.sha256(text.encode("utf-8")).digest() != self._digest:
            raise TokenizerError(f"{self.path}: changed since it was loaded; begin again")
        return compute_fingerprint(content, lambda probe: self._encode_reference([probe])[0].tolist())

    @property
    def backend(self) -> str:
        """`reference`, or `fast`."""
        return "reference" if self._fast is None else "fast"

    def encode(self, text: str) -> list[int]:
        """Ids of a text: no special id is added, and special strings in it are ordinary text."""
        ids: list[int] = self.encode_batch([text])[0].tolist()
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Ids of each text as int32 arrays, in parallel over the library's threads.

        A text of more than 65,536 characters is encoded in pieces cut between a letter and white space or a
        line end and a letter, which gives the ids of the whole; one with no such place in 262,144 characters is cut
        there, and the ids around that cut may differ from those of the whole. The fast backend cuts nothing.
        """
        return self._encode_reference(texts) if self._fast is None else self._fast(texts)

    def _encode_reference(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        pieces: list[str] = []
        counts: list[int] = []
        for text in texts:
            before = len(pieces)
            pieces.extend(self._cut(text))
            counts.append(len(pieces) - before)
        encoded = self._encode_pieces(pieces)
        results = []
        for count in counts:
            parts = [next(encoded) for _ in range(count)]
            results.append(parts[0] if count == 1 else np.concatenate(parts))
        return results

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special ids are shown as their strings."""
        text: str = self._inner.decode(list(ids), skip_special_tokens=False)
        return text

    def token(self, token_id: int) -> str | None:
        """The string of one id, or None for an id that is not in use."""
        token: str | None = self._inner.id_to_token(token_id)
        return token

    def _encode_pieces(self, pieces: list[str]) -> Iterator[NDArray[np.int32]]:
        start = 0
        while start < len(pieces):
            end, characters = start, 0
            while end < len(pieces) and characters < _GROUP_CHARACTERS:
                characters += len(pieces[end])
                end += 1
            for encoding in self._inner.encode_batch_fast(pieces[start:end], add_special_tokens=False):
                yield np.array(encoding.ids, dtype=np.int32)
            start = end

    def _encode_piece(self, text: str) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        return ids

    def _cut(self, text: str) -> Iterator[str]:
        start = 0
        while len(text) - start > _PIECE_CHARACTERS:
            end = min(start + _LONGEST_PIECE, len(text))
            place = _CUT.search(text, start + _PIECE_CHARACTERS, end) if self._has_safe_cuts else None
            if place is None and end == len(text):
                break
            cut = place.start() if place else end
            yield text[start:cut]
            start = cut
        yield text[start:]

    def _find_eod(self, added: dict[str, int], declared: str | None, token: str | None, number: int | None) -> int:
        if number is not None:
            if not 0 <= number < self.vocab_size:
                raise TokenizerError(f"{self.path}: eod_id {number} is outside the vocabulary of {self.vocab_size}")
            return number
        if token is not None:
            found: int | None = self._inner.token_to_id(token)
            if found is None:
                raise TokenizerError(f"{self.path}: eod_token {token!r} is not in its vocabulary")
            return found
        found = _find(added, declared, _EOD_NAMES)
        if found is None:
            names = ", ".join(sorted(added)[:8]) or "none"
            raise TokenizerError(
                f"{self.path}: no end-of-document token known among its special tokens ({names}); name one with "
                "--eod-id or --eod-token"
            )
        return found

    def _refuse_ending_text(self) -> None:
        token = self.token(self.eod_id)
        if token and self.eod_id in self._encode_piece(f"a {token} b"):
            raise TokenizerError(
                f"{self.path}: the text {token!r} gives the end-of-document id {self.eod_id}, so text could end a "
                "document; declare the token in added_tokens or choose another with --eod-id"
            )


def _load_inner(path: Path, content: str) -> Any:
    """The library's tokenizer of a file's text, set to take special strings as text, and to neither cut nor pad."""
    import tokenizers

    try:
        inner = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"{path}: not a tokenizer that the tokenizers library reads: {error}") from error
    inner.encode_special_tokens = True
    inner.no_truncation()
    inner.no_padding()
    return inner


def _read_json(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text("utf-8")
        content: Any = json.loads(text)
    except FileNotFoundError as error:
        raise TokenizerError(f"{path}: no such tokenizer file") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TokenizerError(f"{path}: expected a tokenizer.json, found no JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict) or "vocab" not in content["model"]:
        raise TokenizerError(f"{path}: expected a tokenizer.json with a model and its vocabulary")
    return text, content


def _declared_names(path: Path) -> dict[str, str]:
    """`eos_token`, `pad_token` and `bos_token` of the tokenizer_config.json beside a tokenizer, where it has them."""
    config_path = path.parent / "tokenizer_config.json"
    if not config_path.exists():
        return {}
    try:
        config = json.loads(config_path.read_text("utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{config_path}: not JSON: {error}") from error
    names = {}
    for key in ("eos_token", "pad_token", "bos_token"):
        value = config.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            names[key] = value
    return names


def _dataset_eod(path: Path) -> int | None:
    """The EOD id of the dataset that a tokenizer lies in; its file alone may not tell."""
    manifest_path = path.parent / "dataset.json"
    if not manifest_path.exists():
        return None
    try:
        return int(json.loads(manifest_path.read_text("utf-8"))["special_ids"]["eod"])
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"{manifest_path}: no special_ids.eod in it: {error}") from error


def _find(added: dict[str, int], declared: str | None, names: tuple[str, ...]) -> int | None:
    for name in (declared, *names) if declared else names:
        if name in added:
            return added[name]
    return None
