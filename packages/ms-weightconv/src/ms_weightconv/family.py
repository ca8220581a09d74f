"""What is known about one kind of model: the tables of its weights and of its config."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ms_weightconv.contract import Config
from ms_weightconv.rules import Drop, Duplicate, Rule, Tie

REQUIRED = object()
TheirConfig = Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """A key of both configs."""

    theirs: str
    """Hugging Face's key."""
    ours: str | tuple[str, ...]
    """The key, or keys, of contract `model` that have its value; on the way back the first one counts."""
    default: Any = REQUIRED
    """What transformers' config class takes when the file lacks the key."""
    when_null: Callable[[TheirConfig], Any] | None = None
    """What null stands for, where it stands for something."""
    spellings: tuple[tuple[Any, Any], ...] = ()
    """Values that Hugging Face writes otherwise than contract `model`, as (theirs, ours)."""
    is_written_when_none: bool = True
    """False for a key that the way back leaves out when it has no value."""
    aliases: tuple[str, ...] = ()
    """Other names of Hugging Face's key, read where it is missing."""

    @property
    def our_keys(self) -> tuple[str, ...]:
        """Keys of contract `model`."""
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    @property
    def their_keys(self) -> tuple[str, ...]:
        """Keys of Hugging Face's config."""
        return (self.theirs, *self.aliases)

    def read(self, theirs: TheirConfig) -> Config:
        """The keys of contract `model`; raises KeyError where a required key is missing."""
        name = next((key for key in self.their_keys if key in theirs), self.theirs)
        value = theirs.get(name, self.default)
        if value is REQUIRED or (value is None and self.default is REQUIRED):
            raise KeyError(self.theirs)
        if value is None and self.when_null:
            value = self.when_null(theirs)
        for spelled, meant in self.spellings:
            if type(spelled) is type(value) and spelled == value:
                value = meant
                break
        return dict.fromkeys(self.our_keys, value)

    def write(self, config: Config) -> dict[str, Any]:
        """Hugging Face's key."""
        value = config[self.our_keys[0]]
        if value is None and not self.is_written_when_none:
            return {}
        for spelled, meant in self.spellings:
            if type(meant) is type(value) and meant == value:
                return {self.theirs: spelled}
        return {self.theirs: value}


@dataclass(frozen=True)
class Derived:
    """Keys of both configs that only together have a meaning."""

    their_keys: tuple[str, ...]
    """Keys of Hugging Face's config."""
    our_keys: tuple[str, ...]
    """Keys of contract `model`."""
    read: Callable[[TheirConfig], Config]
    """The keys of contract `model`, all of them; raises ConfigError where the meaning cannot be said."""
    write: Callable[[Config], dict[str, Any]]
    """Hugging Face's keys, or those that are needed."""


@dataclass(frozen=True)
class Limit:
    """A Hugging Face key that changes the computation and of which only some values can be converted."""

    key: str
    """Hugging Face's key."""
    allowed: tuple[Any, ...]
    """Values that change nothing; a missing key is allowed."""
    reason: str
    """What another value would mean."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """All that is known about one kind of model: its weights' table and its config's."""

    name: str
    """Hugging Face's `model_type`."""
    architecture: str
    """transformers' class with a language model head."""
    prefix: str
    """What files of the bare model, without a head, leave out of every name."""
    rules: tuple[Rule | Tie | Drop | Duplicate, ...]
    """The weights' table."""
    fields: tuple[Field | Derived, ...]
    """The config's table."""
    constants: Mapping[str, Any]
    """Keys of contract `model` that have one value in this family; a function computes it from the other keys."""
    limits: tuple[Limit, ...] = ()
    """Keys, besides the common ones, of which only some values can be converted."""
    spellings: tuple[tuple[str, str], ...] = ()
    """Ends of tensor names in old files, and what they are called now."""
    lifted: tuple[str, ...] = ()
    """Keys whose limit does not hold: a user's own table has seen to what they say."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Hugging Face keys that are written with one value."""
