"""Quality filters: published rules and thresholds, by words where there are spaces, by characters where not.

A rule says nothing, or the document's value that breaks it beside the threshold. Sources of rules and thresholds:
Gopher: arXiv:2112.11446, appendix A.1.1 and table A1. C4: arXiv:1910.10683, section 2.2. FineWeb: arXiv:2406.17557,
section 3.6. For text of Chinese or Japanese characters, words are characters: rules about the length of words and
about spaces do not apply, stop words are Chinese ones, and `。！？…` end sentences.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.shingles import mix_ngrams
from ms_dataprep.words import TERMINAL, TextParts

_ENGLISH_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_CHINESE_STOP_WORDS = frozenset("的了是在和有我不这人他们就也都而及与之其于以")
_BULLETS = ("•", "-", "*", "●", "‣", "▪", "·")
_ELLIPSES = ("...", "…")
_C4_PHRASES = ("lorem ipsum", "javascript")
_TOP_NGRAMS = {2: 0.20, 3: 0.18, 4: 0.16}
_REPEATED_NGRAMS = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


@dataclass(frozen=True, slots=True)
class Drop:
    """Why a document is dropped."""

    rule: str
    """The rule's name; dropped documents are counted under it."""
    value: float
    """What the document has."""
    threshold: float
    """What the rule allows at most, or at least."""


Filter = Callable[[TextParts], Drop | None]


def find_drop(parts: TextParts, families: Sequence[str]) -> Drop | None:
    """The first rule of the named families that a document breaks, or None."""
    for family in families:
        for rule, value, threshold, is_broken in _FAMILIES[family](parts):
            if is_broken:
                return Drop(f"{family}_{rule}", round(float(value), 6), threshold)
    return None


Verdict = tuple[str, float, float, bool]


def _judge_gopher_quality(parts: TextParts) -> Iterator[Verdict]:
    words, lines = parts.words, parts.lines
    num_words = max(1, len(words))
    yield "few_words", len(words), 50, len(words) < 50
    yield "many_words", len(words), 100_000, len(words) > 100_000
    if not parts.is_cjk:
        mean = sum(map(len, words)) / num_words
        yield "short_words", mean, 3, mean < 3
        yield "long_words", mean, 10, mean > 10
    hashes = parts.text.count("#") / num_words
    yield "hash_signs", hashes, 0.1, hashes > 0.1
    ellipses = sum(map(parts.text.count, _ELLIPSES)) / num_words
    yield "ellipses", ellipses, 0.1, ellipses > 0.1
    bullets = _share(lines, lambda line: line.startswith(_BULLETS))
    yield "bullet_lines", bullets, 0.9, bullets > 0.9
    trailing = _share(lines, lambda line: line.endswith(_ELLIPSES))
    yield "ellipsis_lines", trailing, 0.3, trailing > 0.3
    alphabetic = _share(words, lambda word: any(map(str.isalpha, word)))
    # Chinese punctuation stands between characters, English punctuation hangs on words.
    least = 0.7 if parts.is_cjk else 0.8
    yield "alphabetic_words", alphabetic, least, alphabetic < least
    stop_words = _CHINESE_STOP_WORDS if parts.is_cjk else _ENGLISH_STOP_WORDS
    found = len(stop_words.intersection(words if parts.is_cjk else map(str.lower, words)))
    yield "stop_words", found, 2, found < 2


def _judge_gopher_repetition(parts: TextParts) -> Iterator[Verdict]:
    for name, units in (("lines", parts.lines), ("paragraphs", parts.paragraphs)):
        repeated, characters = _count_repeated(units)
        share, character_share = repeated / max(1, len(units)), characters / max(1, sum(map(len, units)))
        yield f"repeated_{name}", share, 0.30, share > 0.30
        yield f"repeated_{name}_characters", character_share, 0.20, character_share > 0.20
    words = parts.words
    if len(words) < 2:
        return
    lengths, hashes = np.array([len(word) for word in words]), _hash_words(words)
    total = int(lengths.sum())
    for size, threshold in _TOP_NGRAMS.items():
        share = _top_ngram_characters(hashes, lengths, size) / total
        yield f"top_{size}_gram", share, threshold, share > threshold
    for size, threshold in _REPEATED_NGRAMS.items():
        share = _repeated_ngram_characters(hashes, lengths, size) / total
        yield f"repeated_{size}_grams", share, threshold, share > threshold


def _judge_c4(parts: TextParts) -> Iterator[Verdict]:
    lowered = parts.text.lower()
    for phrase in _C4_PHRASES:
        count = lowered.count(phrase)
        yield phrase.replace(" ", "_"), count, 0, count > 0
    braces = parts.text.count("{")
    yield "braces", braces, 0, braces > 0
    least = 3 if parts.is_cjk else 5  # mC4 (arXiv:2010.11934) asks for three lines, in languages without our marks
    yield "few_sentences", parts.num_sentences, least, parts.num_sentences < least
    ended = _share(parts.lines, lambda line: line.endswith(TERMINAL))
    yield "terminal_lines", ended, 0.1, ended < 0.1  # C4 removes the other lines; a document of nothing else goes


def _judge_fineweb(parts: TextParts) -> Iterator[Verdict]:
    lines = parts.lines
    ended = _share(lines, lambda line: line.endswith(TERMINAL))
    yield "terminal_lines", ended, 0.12, ended <= 0.12
    _, characters = _count_repeated(lines)
    repeated = characters / max(1, sum(map(len, lines)))
    yield "repeated_lines_characters", repeated, 0.1, repeated >= 0.1
    limit = 15 if parts.is_cjk else 30  # characters; a Chinese one says about as much as two
    short = _share(lines, lambda line: len(line) < limit)
    yield "short_lines", short, 0.67, short >= 0.67


_FAMILIES: dict[str, Callable[[TextParts], Iterator[Verdict]]] = {
    "gopher_quality": _judge_gopher_quality,
    "gopher_repetition": _judge_gopher_repetition,
    "c4": _judge_c4,
    "fineweb": _judge_fineweb,
}


def _share(units: Sequence[str], holds: Callable[[str], bool]) -> float:
    return sum(map(holds, units)) / max(1, len(units))


def _count_repeated(units: Sequence[str]) -> tuple[int, int]:
    """Units that stood earlier, and their characters."""
    seen: set[str] = set()
    repeated = characters = 0
    for unit in units:
        if unit in seen:
            repeated += 1
            characters += len(unit)
        seen.add(unit)
    return repeated, characters


def _hash_words(words: Sequence[str]) -> NDArray[np.uint64]:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(word, len(numbers)) for word in words], dtype=np.uint64) + np.uint64(1)


def _top_ngram_characters(hashes: NDArray[np.uint64], lengths: NDArray[np.int64], size: int) -> int:
    """Characters of the most frequent n-gram's occurrences (of several, the longest), 0 if none occurs twice."""
    ngrams = mix_ngrams(hashes, size)
    _, firsts, counts = np.unique(ngrams, return_index=True, return_counts=True)
    if not len(counts) or counts.max() < 2:
        return 0
    sums = np.concatenate(([0], np.cumsum(lengths)))
    top = firsts[counts == counts.max()]
    return int((sums[top + size] - sums[top]).max() * counts.max())


def _repeated_ngram_characters(hashes: NDArray[np.uint64], lengths: NDArray[np.int64], size: int) -> int:
    """Characters of words inside n-grams that stood earlier, each word counted once."""
    ngrams = mix_ngrams(hashes, size)
    _, firsts = np.unique(ngrams, return_index=True)
    if len(firsts) == len(ngrams):
        return 0
    is_repeated = np.ones(len(ngrams), dtype=bool)
    is_repeated[firsts] = False
    edges = np.zeros(len(hashes) + 1, dtype=np.int64)
    edges[:-size][is_repeated] += 1
    edges[size:][is_repeated] -= 1
    return int(lengths[np.cumsum(edges[:-1]) > 0].sum())
