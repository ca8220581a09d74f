"""A tokenizer as datasets need it, whatever its file: text to ids, and the ids that end, pad and begin documents."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.errors import TokenizerError


class Tokenizer(Protocol):
    """A loaded tokenizer.

    Attributes:
        path: its file.
        kind: `huggingface` or `sentencepiece`.
        backend: `reference`, or `fast`.
        vocab_size: the highest id plus one.
        eod_id: ends documents. pad_id, bos_id: None where the tokenizer has none (or pads with its EOD).
    """

    path: Path
    kind: str
    vocab_size: int
    eod_id: int
    pad_id: int | None
    bos_id: int | None

    @property
    def fingerprint(self) -> str:
        """`sha256:...`, the same for files that tokenize alike."""

    @property
    def backend(self) -> str:
        """`reference`, or `fast`."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text: no special id is added, and special strings in it are ordinary text."""

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Ids of each text as int32 arrays."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special ids are shown as their strings."""

    def token(self, token_id: int) -> str | None:
        """The string of one id, or None for an id that is not in use."""


def load_tokenizer(
    path: str | Path, *, eod_token: str | None = None, eod_id: int | None = None, backend: str = "reference"
) -> Tokenizer:
    """Loads a tokenizer.json or a SentencePiece .model, or the one in a folder.

    Args:
        path: the file or its folder; a `dataset.json` or `tokenizer_config.json` beside it tells the special tokens.
        eod_token, eod_id: the end-of-document token where the files do not tell it (give one of them at most).
        backend: `reference`; `fast`, the one of the extra `fast`; or `auto`: the fast one where it is installed and
            gives the reference's ids for a set of test strings, with one log line that says which it is.

    Raises:
        TokenizerError: the file is missing, unreadable, of another kind, or has no end-of-document token; or `fast`
            was asked for and cannot be had.
    """
    path = Path(path)
    if path.is_dir():
        found = [file for name in ("tokenizer.json", "tokenizer.model") if (file := path / name).exists()]
        path = found[0] if found else path / "tokenizer.json"
    if path.suffix == ".model":
        from ms_dataprep.sentencepiece_model import SentencePieceTokenizer

        if backend == "fast":
            raise TokenizerError(f"{path}: the fast backend reads tokenizer.json only; use `auto` or `reference`")
        return SentencePieceTokenizer(path, eod_token=eod_token, eod_id=eod_id)
    from ms_dataprep.huggingface import HuggingFaceTokenizer

    return HuggingFaceTokenizer(path, eod_token=eod_token, eod_id=eod_id, backend=backend)
