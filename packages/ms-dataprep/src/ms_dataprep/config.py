"""The options of a dataset and of a tokenizer's training, and how they are read from a mapping."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ms_dataprep.errors import ConfigError

T = TypeVar("T")

LAYOUTS = ("int32", "bytes")
PACKINGS = ("best_fit", "concat", "one_per_row")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How text becomes rows: the section `data` of a run's YAML."""

    seq_length: int
    """Tokens a training step sees of a row; rows hold one more, so that every input has its label."""
    layout: str = "int32"
    """How a row is stored: `int32` (a stock MindDataset reads it) or `bytes` (faster to write and to read)."""
    packing: str = "best_fit"
    """`best_fit` cuts no document that fits a row, `concat` chops one stream, `one_per_row` pads and truncates."""
    text_key: str = "text"
    """The key of a JSON line that holds the document."""
    on_error: str = "skip"
    """What a bad line does: `skip` counts it and lists it in rejected.jsonl, `fail` stops the build at once."""
    cleaning: str = "standard"
    """`standard`: line ends, control and zero-width characters, NFC, trailing white space; `none`: text as it is."""
    min_characters: int = 1
    """Documents with fewer characters after cleaning are dropped; 1 drops only empty ones."""
    dedup: str = "exact"
    """`exact` drops documents whose cleaned text was seen before, `none` keeps them."""
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
    rows_per_shard: int = 8192
    """Rows of a shard file; also how much is packed, and held in memory, at a time."""

    def __post_init__(self) -> None:
        """Checks every field; raises ConfigError."""
        _check_at_least("seq_length", self.seq_length, 1)
        _check_choice("layout", self.layout, LAYOUTS)
        _check_choice("packing", self.packing, PACKINGS)
        _check_choice("on_error", self.on_error, ("skip", "fail"))
        _check_choice("cleaning", self.cleaning, ("standard", "none"))
        _check_at_least("min_characters", self.min_characters, 0)
        _check_choice("dedup", self.dedup, ("exact", "none"))
        _check_choice("part", self.part, ("all", "train", "validation"))
        if not 0.0 <= self.validation_share <= 1.0:
            raise ConfigError(f"validation_share: expected 0 to 1, found {self.validation_share}")
        if self.part == "validation" and self.validation_share == 0.0:
            raise ConfigError("validation_share: part `validation` is empty with a share of 0.0; give e.g. 0.05")
        if self.eod_token is not None and self.eod_id is not None:
            raise ConfigError("eod_id: give eod_token or eod_id, not both")
        _check_at_least("rows_per_shard", self.rows_per_shard, 1)

    @property
    def row_length(self) -> int:
        """Token ids of a row: one more than `seq_length`."""
        return self.seq_length + 1


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """How a byte-level BPE tokenizer is trained: the section `tokenizer` of a run's YAML."""

    vocab_size: int = 8192
    """Ids of the finished tokenizer: 256 bytes, the end-of-document token, and merges."""
    eod_token: str = "<|endoftext|>"
    """The one special token, with id 0; it ends documents."""
    min_frequency: int = 2
    """How often a pair must occur to be merged."""
    text_key: str = "text"
    """The key of a JSON line that holds the document."""

    def __post_init__(self) -> None:
        """Checks every field; raises ConfigError."""
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
        kind = kinds[key]
        if isinstance(1.0, kind) and isinstance(value, int | str) and not isinstance(value, bool):
            with suppress(ValueError):  # YAML 1.1 reads 3e-4 as text
                value = float(value)
        ready[key] = tuple(value) if isinstance(value, list) else value
        if not isinstance(ready[key], kind) or (isinstance(value, bool) and "bool" not in str(kind)):
            raise ConfigError(f"{section}.{key}: expected {getattr(kind, '__name__', kind)}, found {value!r}")
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
    if missing := [name for name in required if name not in ready]:
        raise ConfigError(f"{section}: missing {', '.join(missing)}")
    return cls(**ready)
