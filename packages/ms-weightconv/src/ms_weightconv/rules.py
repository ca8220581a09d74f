"""The rules of which a family's table is made: each line says how some foreign tensors become some of contract `model`.

A rule names patterns on both sides and the steps between them; both directions of a conversion come from the same
line. Patterns may hold `{layer}`: the rule then stands for one move a layer. A pattern may also hold `{expert}`: all
experts' tensors then belong to one move (for a step that stacks them). Steps work on views where numpy can.

    Rule("h.{layer}.attn.c_attn.weight", ("...query.weight", "...key.weight", "...value.weight"),
         (Transpose(), Split("query", "key", "value")))
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ms_weightconv.contract import Config
from ms_weightconv.errors import RuleError
from ms_weightconv.parameters import Shape, has_experts
from ms_weightconv.steps import Step
from ms_weightconv.words import Words


@dataclass(frozen=True)
class Move:
    """A rule for one layer: full names on both sides."""

    theirs: tuple[str, ...]
    """Foreign names, without the family's prefix."""
    ours: tuple[str, ...]
    """Names of contract `model`."""
    steps: tuple[Step, ...]
    """From theirs to ours."""

    def forward(self, arrays: Sequence[Words], config: Config, only: int | None = None) -> list[Words]:
        """Their arrays, in the order of `theirs`, to ours, in the order of `ours`; or the one with number `only`."""
        current = list(arrays)
        for step in self.steps[:-1]:
            current = step.forward(current, config)
        if self.steps:
            return self.steps[-1].forward(current, config, only)
        return current if only is None else [current[only]]

    def backward(self, arrays: Sequence[Words], config: Config, only: int | None = None) -> list[Words]:
        """The inverse of `forward`; or the array with number `only`."""
        current = list(arrays)
        for step in self.steps[:0:-1]:
            current = step.backward(current, config)
        if self.steps:
            return self.steps[0].backward(current, config, only)
        return current if only is None else [current[only]]

    def backward_shapes(self, shapes: Sequence[Shape], config: Config) -> list[Shape]:
        """Shapes of their tensors, given those of ours."""
        current = list(shapes)
        for step in reversed(self.steps):
            current = step.backward_shapes(current, config)
        return current


@dataclass(frozen=True)
class Rule:
    """A line of a family's table."""

    theirs: str | tuple[str, ...]
    """Foreign name patterns, without the family's prefix for tensors inside the base model."""
    ours: str | tuple[str, ...]
    """Name patterns of contract `model`."""
    steps: tuple[Step, ...] = ()
    """Layout changes from theirs to ours; none means a plain rename."""
    when: str | None = None
    """Where the rule holds: terms joined by `and`, each `KEY`, `KEY=VALUE` or `not` one, of the config's keys and of
    `experts` (this layer has some), `shared_expert` (and one for every token), `embedding_projection`."""

    def moves(self, config: Config) -> Iterator[Move]:
        """The moves that the rule stands for under a config; none when its condition is false."""
        theirs, ours = _as_tuple(self.theirs), _as_tuple(self.ours)
        per_layer = any("{layer}" in pattern for pattern in (*theirs, *ours))
        for layer in range(config["num_hidden_layers"]) if per_layer else (0,):
            if self.when is None or _holds(self.when, config, layer):
                yield Move(_expand(theirs, layer, config), _expand(ours, layer, config), self.steps)

    def __str__(self) -> str:
        text = f"{', '.join(_as_tuple(self.theirs))} -> {', '.join(_as_tuple(self.ours))}"
        steps = f"  [{', '.join(map(str, self.steps))}]" if self.steps else ""
        return text + steps + (f"  when {self.when}" if self.when else "")


@dataclass(frozen=True)
class Tie:
    """A head that is the embedding when `tie_word_embeddings`, and a tensor of its own otherwise.

    A file that holds both although they are tied is accepted only where they are equal bit for bit.
    """

    theirs: str
    """Foreign name of the head."""
    ours: str
    """Name of the head in contract `model`."""
    to: str
    """Name, in contract `model`, of what it is tied to."""

    def moves(self, config: Config) -> Iterator[Move]:
        """A rename when not tied, nothing when tied."""
        if not config["tie_word_embeddings"]:
            yield Move((self.theirs,), (self.ours,), ())

    def __str__(self) -> str:
        return f"{self.theirs} -> {self.ours}  [tied to {self.to} when tie_word_embeddings]"


@dataclass(frozen=True)
class Drop:
    """A tensor that old files hold and that no weight depends on; left out, with the reason in the report."""

    theirs: str
    """Foreign name pattern."""
    reason: str
    """Why it may be left out."""

    def names(self, config: Config) -> tuple[str, ...]:
        """The full names that may be left out."""
        layers = range(config["num_hidden_layers"]) if "{layer}" in self.theirs else (0,)
        return tuple(self.theirs.replace("{layer}", str(layer)) for layer in layers)

    def __str__(self) -> str:
        return f"{self.theirs} -> left out  [{self.reason}]"


@dataclass(frozen=True)
class Duplicate:
    """A tensor that some files hold a second time; left out where it equals the first bit for bit, else refused."""

    theirs: str
    """Foreign name of the second copy."""
    of: str
    """Foreign name of the first."""

    def __str__(self) -> str:
        return f"{self.theirs} -> left out  [where it equals {self.of}]"


_FACTS: dict[str, Callable[[Config, int], object]] = {
    "experts": has_experts,
    "shared_expert": lambda config, layer: has_experts(config, layer) and config["shared_expert_intermediate_size"],
    "embedding_projection": lambda config, layer: config["embedding_size"] != config["hidden_size"],
}


def _holds(condition: str, config: Config, layer: int) -> bool:
    for term in condition.split(" and "):
        key, _, value = term.removeprefix("not ").partition("=")
        if key not in _FACTS and key not in config:
            raise RuleError(f"rule condition {condition!r}: {key} is no key of contract model and no fact")
        found = _FACTS[key](config, layer) if key in _FACTS else config[key]
        if (str(found) == value if value else bool(found)) == term.startswith("not "):
            return False
    return True


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _expand(patterns: tuple[str, ...], layer: int, config: Config) -> tuple[str, ...]:
    names: list[str] = []
    for pattern in (pattern.replace("{layer}", str(layer)) for pattern in patterns):
        experts = range(config["num_experts"]) if "{expert}" in pattern else (0,)
        names.extend(pattern.replace("{expert}", str(expert)) for expert in experts)
    return tuple(names)
