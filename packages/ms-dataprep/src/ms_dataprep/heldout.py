"""Decontamination: whether a document holds an n-gram of held-out texts (arXiv:2005.14165, appendix C)."""

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.errors import SourceError
from ms_dataprep.readers import Document, read_documents
from ms_dataprep.shingles import hash_ngrams
from ms_dataprep.sources import find_sources, open_stream
from ms_dataprep.words import TextParts

_PUNCTUATION = re.compile(r"[\W_]+")


class HeldoutNgrams:
    """The n-grams of held-out texts as sorted 64-bit hashes; letters are lowered and punctuation is left out.

    A held-out text of fewer words than an n-gram has is taken as a whole if it has eight words or more, as the paper
    does for short examples; a shorter one says too little to drop anything for.
    """

    _FEWEST_WORDS = 8

    def __init__(self, texts: Iterable[str], ngram: int) -> None:
        self._ngram = ngram
        by_size: dict[int, list[NDArray[np.uint64]]] = {}
        for text in texts:
            words = _plain_words(text)
            size = min(ngram, len(words))
            if size >= min(ngram, self._FEWEST_WORDS):
                by_size.setdefault(size, []).append(hash_ngrams(words, size))
        self._hashes = {size: np.unique(np.concatenate(parts)) for size, parts in sorted(by_size.items())}

    def __len__(self) -> int:
        return sum(map(len, self._hashes.values()))

    def count_shared(self, text: str) -> int:
        """N-grams of a text that a held-out text has too."""
        words = _plain_words(text)
        shared = 0
        for size, known in self._hashes.items():
            ngrams = hash_ngrams(words, size)
            places = np.minimum(np.searchsorted(known, ngrams), len(known) - 1)
            shared += int((known[places] == ngrams).sum())
        return shared


def read_heldout(inputs: Sequence[str], text_keys: Sequence[str], ngram: int) -> HeldoutNgrams:
    """The n-grams of the documents in files, folders and globs.

    Raises:
        SourceError: an input is missing, or a line of it cannot be read; nothing of a held-out set may be missed.
    """
    return HeldoutNgrams(_read_texts(inputs, text_keys), ngram)


def _read_texts(inputs: Sequence[str], text_keys: Sequence[str]) -> Iterator[str]:
    for source in find_sources(inputs):
        with open_stream(source) as (stream, _):
            for item in read_documents(source, stream, text_keys):
                if isinstance(item, Document):
                    yield item.text
                elif item.kind == "bad_line":
                    raise SourceError(f"heldout: {source.path}:{item.line}: {item.reason}")


def _plain_words(text: str) -> list[str]:
    return TextParts(_PUNCTUATION.sub(" ", text.lower())).words
