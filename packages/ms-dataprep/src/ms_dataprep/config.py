"""The options of a dataset and of a tokenizer's training, and how they are read from a mapping."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_dataprep.errors import ConfigError

T = TypeVar("T")

LAYOUTS = ("int32", "bytes")
PACKINGS = ("best_fit", "concat", "one_per_row")
QUALITIES = ("gopher_quality", "gopher_repetition", "c4", "fineweb")
_CHOICES = {
    "layout": LAYOUTS,
    "packing": PACKINGS,
    "on_error": ("skip", "fail"),
    "cleaning": ("standard", "none"),
    "unicode_form": ("nfc", "nfkc"),
    "chinese_script": ("keep", "simplified", "traditional"),
    "dedup": ("none", "exact", "near"),
    "dedup_lines": ("none", "line", "paragraph"),
    "part": ("all", "train", "validation"),
    "tokenizer_backend": ("auto", "reference", "fast"),
}


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How text becomes rows: the section `data` of a run's YAML."""

    seq_length: int
    """Tokens a training step sees of a row; rows hold one more, so that every input has its label."""
    layout: str = "int32"
    """How a row is stored: `int32` (a stock MindDataset reads it) or `bytes` (faster to write and to read)."""
    packing: str = "best_fit"
    """`best_fit` cuts no document that fits a row, `concat` chops one stream, `one_per_row` pads and truncates."""
    text_key: str | tuple = "text"  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """The key, or column, that holds a document's text; of several, the texts are joined by a blank line."""
    source_weights: dict | None = None  # type: ignore[type-arg]
    """Glob of source paths -> how often its documents are written: 0.25 keeps a quarter, 2 writes each twice."""
    on_error: str = "skip"
    """What a bad line does: `skip` counts it and lists it in rejected.jsonl, `fail` stops the build at once."""
    cleaning: str = "standard"
    """`standard`: line ends, control and zero-width characters, NFC, trailing white space; `none`: text as it is."""
    unicode_form: str = "nfc"
    """`nfc`, or `nfkc`, which also replaces ligatures, full-width forms and the like."""
    remove_html: bool = False
    """Removes tags, comments, scripts and styles; entities become their characters."""
    fix_mojibake: bool = False
    """Repairs text that was decoded wrongly (needs the extra `ftfy`)."""
    fold_full_width: bool = False
    """Full-width Latin letters and digits become ordinary ones."""
    chinese_script: str = "keep"
    """`keep`, or one script for all: `simplified`, `traditional` (needs the extra `chinese`)."""
    mask_personal_data: bool = False
    """E-mail addresses, phone and Chinese ID numbers and IP addresses become tags."""
    own_steps: tuple = ()  # type: ignore[type-arg]
    """Cleaning steps of one's own by dotted name: functions from text to text that run last; empty text is dropped."""
    min_characters: int = 1
    """Documents with fewer characters after cleaning are dropped; 1 drops only empty ones."""
    quality: str | tuple = ()  # type: ignore[type-arg]
    """Families of quality filters: any of `gopher_quality`, `gopher_repetition`, `c4`, `fineweb`."""
    languages: tuple = ()  # type: ignore[type-arg]
    """Languages to keep, as ISO 639-1 codes; empty keeps all (others need the extra `language`)."""
    language_threshold: float = 0.65
    """Probability of a kept language, 0 to 1, below which a document is dropped."""
    dedup: str = "exact"
    """`exact` drops documents whose cleaned text was seen before, `near` also similar ones, `none` keeps all."""
    near_threshold: float = 0.8
    """Jaccard similarity of shingles, 0 to 1, from which documents count as near-duplicates."""
    dedup_lines: str = "none"
    """`line` or `paragraph` removes those that an earlier document (or place) holds; `none` keeps them."""
    min_line_characters: int = 30
    """Shorter lines and paragraphs are never removed as repeated."""
    heldout: tuple = ()  # type: ignore[type-arg]
    """Evaluation texts (files, folders, globs): documents that share an n-gram with them are dropped."""
    heldout_ngram: int = 13
    """Words, or Chinese characters, of such an n-gram."""
    lists_dropped: bool = False
    """Writes dropped.jsonl: each dropped document with its rule, value and threshold."""
    part: str = "all"
    """`all` documents, or only those of `train` or of `validation`, told apart by a hash of their text."""
    validation_share: float = 0.0
    """Share of documents, 0 to 1, that belong to `validation`; the same in both builds of a pair."""
    eod_token: str | None = None
    """The token that ends a document, when the tokenizer file does not tell."""
    eod_id: int | None = None
    """Its id, as an alternative to `eod_token`."""
    add_bos: bool = False
    """Whether every document begins with the tokenizer's beginning-of-document id."""
    tokenizer_backend: str = "auto"
    """`reference`, `fast` (extra `fast`), or `auto`: the fast one where it is installed and passes its check."""
    shard_megabytes: float = 64.0
    """Text of a shard in MB (10^6 bytes); also what one task reads, packs and holds in memory at a time."""

    def __post_init__(self) -> None:
        """Checks every field; raises ConfigError."""
        for name in ("text_key", "quality"):
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, (value,))
        _check_at_least("seq_length", self.seq_length, 1)
        _check_at_least("min_characters", self.min_characters, 0)
        _check_at_least("min_line_characters", self.min_line_characters, 1)
        _check_at_least("heldout_ngram", self.heldout_ngram, 2)
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name in ("text_key", "own_steps", "quality", "languages", "heldout"):
            if not all(isinstance(item, str) and item for item in getattr(self, name)):
                raise ConfigError(f"{name}: expected strings, found {list(getattr(self, name))!r}")
        if not self.text_key:
            raise ConfigError("text_key: expected at least one key")
        for family in self.quality:
            _check_choice("quality", family, QUALITIES)
        for name in ("validation_share", "language_threshold"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name}: expected 0 to 1, found {getattr(self, name)}")
        if not 0.0 < self.near_threshold < 1.0:
            raise ConfigError(f"near_threshold: expected more than 0 and less than 1, found {self.near_threshold}")
        if self.part == "validation" and self.validation_share == 0.0:
            raise ConfigError("validation_share: part `validation` is empty with a share of 0.0; give e.g. 0.05")
        if self.eod_token is not None and self.eod_id is not None:
            raise ConfigError("eod_id: give eod_token or eod_id, not both")
        if not 0 < self.shard_megabytes <= 1000:
            raise ConfigError(f"shard_megabytes: expected more than 0 and at most 1000, found {self.shard_megabytes}")
        for pattern, weight in (self.source_weights or {}).items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 100:
                raise ConfigError(f"source_weights: {pattern!r}: expected a number from 0 to 100, found {weight!r}")

    @property
    def row_length(self) -> int:
        """Token ids of a row: one more than `seq_length`."""
        return self.seq_length + 1


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How a tokenizer is trained."""

    kind: str = "byte_bpe"
    """`byte_bpe`: byte-level BPE as tokenizer.json; `bpe`, `unigram`: SentencePiece .model (extra `sentencepiece`)."""
    vocab_size: int = 8192
    """Ids of the finished tokenizer: 256 bytes, special tokens, and what is learned."""
    eod_token: str = "<|endoftext|>"
    """Of byte_bpe, the one special token, with id 0; it ends documents. SentencePiece has `</s>`."""
    min_frequency: int = 2
    """Of byte_bpe, how often a pair must occur to be merged."""
    text_key: str = "text"
    """The key of a JSON line that holds the document."""

    def __post_init__(self) -> None:
        """Checks every field; raises ConfigError."""
        _check_choice("kind", self.kind, ("byte_bpe", "bpe", "unigram"))
        _check_at_least("vocab_size", self.vocab_size, 257)
        _check_at_least("min_frequency", self.min_frequency, 1)
        if not self.eod_token.strip():
            raise ConfigError(f"eod_token: expected a visible string, found {self.eod_token!r}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name}: expected one of {', '.join(choices)}, found {value!r}")


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name}: expected {least} or more, found {value}")


def from_mapping(cls: type[T], values: Mapping[str, Any], section: str) -> T:
    """Builds the dataclass `cls`; raises ConfigError with the full path of an unknown, missing or mistyped key."""
    kinds, ready = get_type_hints(cls), {}
    for key, value in values.items():
        if key not in kinds:
            near = get_close_matches(key, kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kinds)}"
            raise ConfigError(f"{section}.{key}: unknown key; {hint}")
        ready[key], kind = tuple(value) if isinstance(value, list) else value, kinds[key]
        if isinstance(1.0, kind) and type(value) in (int, str):
            with suppress(ValueError):  # YAML 1.1 reads 3e-4 as text
                ready[key] = float(value)
        if not isinstance(ready[key], kind) or (isinstance(value, bool) and "bool" not in str(kind)):
            raise ConfigError(f"{section}.{key}: expected {getattr(kind, '__name__', kind)}, found {value!r}")
    if missing := [f.name for f in fields(cls) if f.name not in ready and f.default is f.default_factory]:  # type: ignore[arg-type]
        raise ConfigError(f"{section}: missing {', '.join(missing)}")
    return cls(**ready)
