"""Which rule, rate and decay each parameter gets: the first group whose pattern matches, else the defaults."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ms_trainloop.config import TrainConfig
from ms_trainloop.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """How one parameter is updated."""

    rule: str
    """`adamw`, `sgd` or `muon`."""
    learning_rate_factor: float
    """Its rate is the schedule's times this."""
    weight_decay: float
    """Its own decay, 0 for none."""


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether any of the shell-style patterns matches the whole name (upper and lower case differ)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def treat(name: str, shape: tuple[int, ...], config: TrainConfig) -> Treatment:
    """Returns the treatment of a parameter.

    By default matrices (two axes) that match no pattern of `config.muon_exclude` take Muon if the optimizer is Muon,
    and parameters of two axes or more that match no pattern of `config.no_decay` decay.
    """
    is_muon = config.optimizer == "muon" and len(shape) == 2 and not matches(name, config.muon_exclude)
    rule = "muon" if is_muon else "adamw" if config.optimizer == "muon" else config.optimizer
    decay = config.weight_decay if len(shape) >= 2 and not matches(name, config.no_decay) else 0.0
    factor = 1.0
    for group in config.groups:
        if matches(name, (group.pattern,)):
            rule = group.optimizer or rule
            decay = decay if group.weight_decay is None else group.weight_decay
            factor = group.learning_rate_factor
            break
    if rule == "muon" and len(shape) != 2:
        raise ConfigError(f"train.groups: {name} of shape {list(shape)} cannot take muon, which is for matrices")
    return Treatment(rule=rule, learning_rate_factor=factor, weight_decay=decay)


def require_matches(names: Iterable[str], patterns: Mapping[str, Iterable[str]]) -> None:
    """Raises ConfigError for every pattern, by the field it stands in, that matches none of the names."""
    known = list(names)
    idle = [
        f"{field}: {pattern!r} matches no parameter"
        for field, given in patterns.items()
        for pattern in given
        if not any(fnmatchcase(name, pattern) for name in known)
    ]
    if idle:
        raise ConfigError(f"{'; '.join(idle)}; the parameters are {', '.join(known[:40])}")
