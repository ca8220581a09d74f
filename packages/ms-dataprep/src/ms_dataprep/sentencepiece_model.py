"""SentencePiece models: text is only ever text, documents have an end."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.errors import TokenizerError
from ms_dataprep.fingerprint import hash_facts, probe_strings


class SentencePieceTokenizer:
    """A loaded SentencePiece .model; see `tokenizer.Tokenizer`. Control pieces in a text are ordinary text."""

    kind = "sentencepiece"
    backend = "reference"

    def __init__(self, path: Path, *, eod_token: str | None = None, eod_id: int | None = None) -> None:
        """Raises TokenizerError for a file that cannot be used; says how to install what reads it."""
        self.path = path
        self._inner = _load(path)
        self.vocab_size: int = self._inner.vocab_size()
        self.eod_id = self._find_eod(eod_token, eod_id)
        self.pad_id = self._named(self._inner.pad_id())
        self.bos_id = self._named(self._inner.bos_id())
        self._refuse_ending_text()

    def encode(self, text: str) -> list[int]:
        """See `tokenizer.Tokenizer`."""
        ids: list[int] = self._inner.encode(text)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """See `tokenizer.Tokenizer`; in parallel over the library's threads."""
        return [np.array(ids, dtype=np.int32) for ids in self._inner.encode(list(texts))]

    def decode(self, ids: Sequence[int]) -> str:
        """See `tokenizer.Tokenizer`."""
        shown: list[str] = []
        waiting: list[int] = []
        for number in ids:  # the library leaves control pieces out
            if self._inner.is_control(int(number)):
                shown += [self._inner.decode(waiting), self._inner.id_to_piece(int(number))]
                waiting = []
            else:
                waiting.append(int(number))
        return "".join([*shown, self._inner.decode(waiting)])

    def token(self, token_id: int) -> str | None:
        """See `tokenizer.Tokenizer`."""
        return self._inner.id_to_piece(token_id) if 0 <= token_id < self.vocab_size else None

    def _named(self, number: int) -> int | None:
        return number if number >= 0 and number != self.eod_id else None

    def _find_eod(self, token: str | None, number: int | None) -> int:
        if number is None and token is not None:
            number = self._inner.piece_to_id(token)
            if self._inner.id_to_piece(number) != token:
                raise TokenizerError(f"{self.path}: eod_token {token!r} is not in its vocabulary")
        if number is None:
            number = self._inner.eos_id()
            if number < 0:
                raise TokenizerError(
                    f"{self.path}: no end-of-sentence piece, so nothing that ends documents; name one with --eod-id or "
                    "--eod-token"
                )
        if not 0 <= number < self.vocab_size:
            raise TokenizerError(f"{self.path}: eod_id {number} is outside the vocabulary of {self.vocab_size}")
        return number

    def _refuse_ending_text(self) -> None:
        piece = self._inner.id_to_piece(self.eod_id)
        if self.eod_id in self.encode(f"a {piece} b"):
            raise TokenizerError(
                f"{self.path}: the text {piece!r} gives the end-of-document id {self.eod_id}, so text could end a "
                "document; choose another with --eod-id"
            )

    @cached_property
    def fingerprint(self) -> str:
        """See `tokenizer.Tokenizer`."""
        inner, numbers = self._inner, range(self.vocab_size)
        special = [
            [number, inner.id_to_piece(number)]
            for number in numbers
            if inner.is_control(number) or inner.is_unknown(number) or _is_user_defined(inner, number)
        ]
        return hash_facts({
            "vocabulary": [[number, inner.id_to_piece(number).encode("utf-8").hex()] for number in numbers],
            "merges": [],
            "scores": [repr(float(inner.get_score(number))) for number in numbers],
            "special": special,
            "normalizer": None,
            "pre_tokenizer": None,
            "probes": [[text, self.encode(text)] for text in probe_strings()],
        })  # fmt: skip


def _load(path: Path) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise TokenizerError(
            f'{path}: SentencePiece models need sentencepiece; pip install "ms-dataprep[sentencepiece]"'
        ) from error
    if not path.is_file():
        raise TokenizerError(f"{path}: no such tokenizer file")
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise TokenizerError(f"{path}: not a SentencePiece model: {' '.join(str(error).split())}") from error


def _is_user_defined(inner: Any, number: int) -> bool:
    """A user-defined piece: one that its own text always gives, though its score is 0 like a control piece's."""
    is_ordinary = inner.is_byte(number) or inner.is_unused(number) or inner.get_score(number) != 0.0
    return not is_ordinary and number in inner.encode(inner.id_to_piece(number))
