"""The config of a model: the keys of contract `model`, checked, read from and written to JSON."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ms_gptmodel.errors import ConfigError

FORMAT, VERSION = "ms-gptmodel.config", 1

_CHOICES = {
    "norm_kind": ("rms_norm", "layer_norm"),
    "position_kind": ("rotary", "learned"),
    "hidden_act": ("silu", "gelu", "gelu_new", "relu"),
}
_SCALING_KEYS = {
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
}
_RESERVED = ("num_experts", "sliding_window", "parallel_residual", "rope_interleaved", "partial_rotary_factor")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What tells one dense decoder from another, in Hugging Face's words where Hugging Face has one."""

    vocab_size: int
    """Rows of the embedding; ids are 0 ... vocab_size - 1."""
    hidden_size: int
    """Width of the residual stream."""
    num_hidden_layers: int
    """Number of blocks."""
    num_attention_heads: int
    """Number of query heads."""
    intermediate_size: int
    """Width inside the feed-forward layer."""
    max_position_embeddings: int
    """Number of positions; the longest sequence."""
    model_type: str = "llama"
    """The family as Hugging Face spells it; for people and converters, no cell looks at it."""
    num_key_value_heads: int = None  # type: ignore[assignment]  # filled in below
    """Number of key/value heads, a divisor of the query heads; left out: as many as query heads."""
    head_dim: int = None  # type: ignore[assignment]  # filled in below
    """Width of one head; left out: hidden_size / num_attention_heads."""
    norm_kind: str = "rms_norm"
    """`rms_norm` or `layer_norm`."""
    rms_norm_eps: float = 1e-5
    """Added to the mean square, when norm_kind is rms_norm and in query and key norms."""
    layer_norm_eps: float = 1e-5
    """Added to the variance, when norm_kind is layer_norm."""
    norm_bias: bool = False
    """Layer norms have a bias; an RMS norm never has one."""
    position_kind: str = "rotary"
    """`rotary` (half-rotated) or `learned`."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: dict | None = None  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """Stretching of the rotary frequencies: rope_type `linear` or `llama3` with their factors."""
    hidden_act: str = "silu"
    """`silu`, `gelu` (exact), `gelu_new` (tanh form) or `relu`."""
    gated_mlp: bool = True
    """The feed-forward layer is down(act(gate) * up) instead of down(act(up))."""
    attention_bias: bool = False
    """Query, key and value have a bias."""
    attention_output_bias: bool = False
    """The attention's output projection has a bias."""
    mlp_bias: bool = False
    """Gate, up and down have a bias."""
    qk_norm: bool = False
    """Queries and keys pass an RMS norm over head_dim before rotation."""
    tie_word_embeddings: bool = False
    """The embedding is the output matrix as well."""
    initializer_range: float = 0.02
    """Standard deviation of fresh weights."""
    bos_token_id: int | None = None
    """Id that begins a text."""
    eos_token_id: int | tuple | None = None  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """Id or ids that end a text."""
    pad_token_id: int | None = None
    """Id that fills rows."""
    tokenizer_fingerprint: str | None = None
    """Fingerprint of contract `dataset`; opaque here."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_attention_heads"):
            self._check(name, getattr(self, name) >= 1, "1 or more")
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        if self.head_dim is None:
            divides = self.hidden_size % self.num_attention_heads == 0
            wanted = f"a divisor of hidden_size {self.hidden_size}, or head_dim given"
            self._check("num_attention_heads", divides, wanted)
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        for name, kind in get_type_hints(type(self)).items():
            if kind is int:
                self._check(name, getattr(self, name) >= 1, "1 or more")
            elif kind is float:
                self._check(name, 0 < getattr(self, name) < float("inf"), "a positive number")
        for name, choices in _CHOICES.items():
            self._check(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        grouped = self.num_attention_heads % self.num_key_value_heads == 0
        self._check("num_key_value_heads", grouped, f"a divisor of num_attention_heads {self.num_attention_heads}")
        self._check("head_dim", self.position_kind != "rotary" or self.head_dim % 2 == 0, "an even number for rotary")
        self._check("norm_bias", not self.norm_bias or self.norm_kind == "layer_norm", "false with rms_norm")
        self._check_scaling()
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(self, name)
            ids = value if isinstance(value, tuple) else () if value is None else (value,)
            fits = all(type(i) is int and 0 <= i < self.vocab_size for i in ids) and len(set(ids)) == len(ids)
            self._check(name, fits and value != (), f"different ids from 0 to {self.vocab_size - 1}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], section: str = "model") -> "ModelConfig":
        """The config in `values` (a parsed config.json, or section `model` of a run's YAML).

        `format` and `version` may be absent; when present they must be this reader's. Raises ConfigError with the
        full path of an unknown, missing or mistyped key.
        """
        values = dict(values)
        for key, expected in (("format", FORMAT), ("version", VERSION)):
            found = values.pop(key, expected)
            if found != expected or isinstance(found, bool):
                raise ConfigError(f"{section}.{key}: expected {expected!r}, found {found!r}")
        for key in _RESERVED:
            if key in values:
                raise ConfigError(
                    f"{section}.{key}: reserved for a later version; version {VERSION} has dense decoders"
                )
        for key in ("num_key_value_heads", "head_dim"):
            if key in values and values[key] is None:
                del values[key]
        return from_mapping(cls, values, section)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids that end a text, in order; empty when there is none."""
        if self.eos_token_id is None:
            return ()
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)

    def to_mapping(self) -> dict[str, Any]:
        """All keys of config.json, `format` and `version` first, as plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["eos_token_id"] = list(self.eos_token_id) if isinstance(self.eos_token_id, tuple) else self.eos_token_id
        return {"format": FORMAT, "version": VERSION, **values}

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps(self.to_mapping(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Writes config.json to `path`, whole or not at all."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(self.to_json())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)

    def _check_scaling(self) -> None:
        if self.rope_scaling is None:
            return
        object.__setattr__(self, "rope_scaling", dict(self.rope_scaling))
        kind = self.rope_scaling.get("rope_type")
        known = isinstance(kind, str) and kind in _SCALING_KEYS
        self._check("rope_scaling", known, f"rope_type {' or '.join(_SCALING_KEYS)}")
        wanted = {"rope_type"} | _SCALING_KEYS[str(kind)]
        self._check("rope_scaling", set(self.rope_scaling) == wanted, f"exactly the keys {', '.join(sorted(wanted))}")
        numbers = [value for key, value in self.rope_scaling.items() if key != "rope_type"]
        sound = all(isinstance(n, int | float) and not isinstance(n, bool) and 0 < n < float("inf") for n in numbers)
        self._check("rope_scaling", sound and self.rope_scaling["factor"] >= 1, "positive numbers, factor 1 or more")
        if kind == "llama3":
            rising = self.rope_scaling["low_freq_factor"] < self.rope_scaling["high_freq_factor"]
            self._check("rope_scaling", rising, "low_freq_factor below high_freq_factor")
            whole = isinstance(self.rope_scaling["original_max_position_embeddings"], int)
            self._check("rope_scaling", whole, "a whole number of original_max_position_embeddings")

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(f"model.{name}: expected {expected}, found {getattr(self, name)!r}")


def load_config(path: str | Path) -> ModelConfig:
    """The config in the file `path`, or in `path`/config.json when `path` is a folder.

    Raises ConfigError, naming the file, when it is not strict JSON or not a config of this version.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_refuse_repeats)
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(values).__name__}")
    for key in ("format", "version"):
        if key not in values:
            raise ConfigError(
                f"{path}: no {key!r}; expected {FORMAT!r} version {VERSION} (a config.json of Hugging Face is converted"
                " by ms-weightconv)"
            )
    return ModelConfig.from_mapping(values, str(path))


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


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [key for key, _ in pairs]
        raise ValueError(f"repeated key {next(key for key in names if names.count(key) > 1)!r}")
    return values
