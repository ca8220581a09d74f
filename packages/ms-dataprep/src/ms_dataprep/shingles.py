"""Shingles and MinHash: how alike two texts are, from a few hundred bytes of each.

A shingle is a run of words; the similarity of two texts is the Jaccard index of their sets of shingles. MinHash
(Broder 1997, "On the resemblance and containment of documents") keeps, for each of many hash functions, the smallest
value over a text's shingles: two texts agree in each with a probability equal to their similarity. Banding
(Leskovec et al., Mining of Massive Datasets, section 3.4) compares the rows of a band at once: with b bands of r rows,
texts of similarity s meet in at least one band with probability 1 - (1 - s^r)^b.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

NUM_HASHES = 128
WORDS_PER_SHINGLE = 5
_AT_ONCE = 4096


def choose_bands(threshold: float, num_hashes: int = NUM_HASHES) -> tuple[int, int]:
    """(bands, rows a band): the most rows with which a pair at the threshold still meets with 95%."""
    for rows in range(num_hashes, 1, -1):
        bands = num_hashes // rows
        if probability_of_meeting(threshold, bands, rows) >= 0.95:
            return bands, rows
    return num_hashes, 1


def probability_of_meeting(similarity: float, bands: int, rows: int) -> float:
    """The probability with which two texts of a Jaccard similarity share a band."""
    return float(1 - (1 - similarity**rows) ** bands)


def hash_ngrams(words: Sequence[str], size: int) -> NDArray[np.uint64]:
    """64-bit hashes of a text's n-grams in order, one a starting word; empty for fewer words than `size`."""
    codes = {word: zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in set(words)}
    return mix_ngrams(np.array([codes[word] for word in words], dtype=np.uint64), size)


def mix_ngrams(codes: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """64-bit hashes of the n-grams of words that are given by a number each; empty for fewer words than `size`."""
    mixed = np.zeros(max(0, len(codes) - size + 1), dtype=np.uint64)
    for place in range(size if len(mixed) else 0):
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9) + codes[place : place + len(mixed)]
    mixed ^= mixed >> np.uint64(32)
    return mixed * np.uint64(0x94D049BB133111EB)


def hash_shingles(words: Sequence[str], size: int = WORDS_PER_SHINGLE) -> NDArray[np.uint32]:
    """32-bit hashes of a text's distinct shingles; empty for one of fewer words than a shingle has."""
    return np.unique((hash_ngrams(words, size) >> np.uint64(32)).astype(np.uint32))


class MinHasher:
    """Computes signatures with a fixed family of hash functions, the same in every process and version."""

    def __init__(self, num_hashes: int = NUM_HASHES) -> None:
        random = np.random.Generator(np.random.Philox(key=0x6D696E68617368))
        self._factors = random.integers(0, 1 << 64, num_hashes, dtype=np.uint64) | np.uint64(1)
        self._terms = random.integers(0, 1 << 64, num_hashes, dtype=np.uint64)

    def sign(self, shingles: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The signature (uint32 [num_hashes]) of a set of shingle hashes that is not empty."""
        smallest = np.full(len(self._factors), np.iinfo(np.uint32).max, dtype=np.uint32)
        for start in range(0, len(shingles), _AT_ONCE):
            part = shingles[start : start + _AT_ONCE].astype(np.uint64)
            # Multiply-add-shift (Dietzfelbinger 1996): universal on 32-bit keys, in arithmetic that wraps at 64 bits.
            values = (part[:, None] * self._factors + self._terms) >> np.uint64(32)
            smallest = np.minimum(smallest, values.astype(np.uint32).min(axis=0))
        return smallest


def hash_bands(signature: NDArray[np.uint32], bands: int, rows: int) -> NDArray[np.uint64]:
    """One 64-bit hash a band (uint64 [bands]), in which the band's number takes part."""
    values = np.arange(1, bands + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for row in signature[: bands * rows].reshape(bands, rows).T.astype(np.uint64):
        values = (values ^ (values >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9) + row
    values ^= values >> np.uint64(32)
    return values * np.uint64(0x94D049BB133111EB)
