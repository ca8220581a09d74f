"""Which stored tensor goes where on load: strict, except for what a caller allows in so many words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from numpy.typing import DTypeLike

from ms_ckpt.errors import MismatchError
from ms_ckpt.index import Index
from ms_ckpt.tensor import spell_dtype

Expected = Mapping[str, tuple[DTypeLike | str, Sequence[int]]]
"""dtype (numpy's, or safetensors' spelling such as `BF16`) and shape of every tensor by name."""


@dataclass(frozen=True, kw_only=True)
class LoadRules:
    """What a load may leave out, rename or convert. In patterns `*` stands for any text; the default allows nothing."""

    only: tuple[str, ...] = ("*",)
    """Load these only (names after renaming); others are neither read nor missed."""

    renames: Mapping[str, str] = field(default_factory=dict)
    """Stored name -> wanted name; one `*` in both carries the rest of the name over (`encoder.*` -> `model.*`)."""

    allow_missing: tuple[str, ...] = ()
    """Expected tensors that the checkpoint need not hold."""

    allow_unexpected: tuple[str, ...] = ()
    """Tensors that the checkpoint may hold without anybody expecting them; they are not read."""

    allow_cast: tuple[str, ...] = ()
    """Tensors whose dtype may be converted to the expected one (refused if a value does not fit)."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """A stored tensor that a load takes."""

    stored: str
    """Its name in the checkpoint."""
    cast: str | None = None
    """The dtype it becomes, or None."""


def match_tensors(
    index: Index,
    expected: Expected | None,
    rules: LoadRules,
    source: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Match]:
    """What to read, by wanted name.

    Args:
        index: The checkpoint's.
        expected: What is wanted; None takes everything.
        rules: The exceptions.
        source: Named in the error.
        shapes: Shapes of the blocks that are read, by stored name.

    Raises:
        MismatchError: lists every missing, unexpected, reshaped and retyped tensor, and every rename without effect.
    """
    stored_names, differences = _choose(index.tensors, rules)
    if expected is None:
        _refuse(differences, source)
        return {wanted: Match(stored=stored) for wanted, stored in stored_names.items()}
    matches = {}
    for name in sorted(name for name in expected.keys() | stored_names.keys() if _fits(name, rules.only)):
        if name not in stored_names:
            if not _fits(name, rules.allow_missing):
                differences.append(f"{name}: missing")
        elif name not in expected:
            if not _fits(name, rules.allow_unexpected):
                differences.append(f"{name}: unexpected")
        else:
            stored = stored_names[name]
            tensor = index.tensors[stored]
            dtype, shape = expected[name]
            wanted, found_shape = spell_dtype(dtype, name), shapes[stored]
            if found_shape != tuple(shape):
                differences.append(f"{name}: shape {list(found_shape)}, expected {list(shape)}")
            if tensor.dtype != wanted and not _fits(name, rules.allow_cast):
                differences.append(f"{name}: dtype {tensor.dtype}, expected {wanted}")
            matches[name] = Match(stored=stored, cast=wanted if tensor.dtype != wanted else None)
    _refuse(differences, source)
    return matches


def chosen_names(names: Iterable[str], rules: LoadRules, source: str) -> dict[str, str]:
    """Stored name by wanted name of what `only` and `renames` choose; raises MismatchError for impossible renames."""
    chosen, problems = _choose(names, rules)
    _refuse(problems, source)
    return chosen


def _choose(stored_names: Iterable[str], rules: LoadRules) -> tuple[dict[str, str], list[str]]:
    """Stored name by wanted name, and what is wrong with the renames."""
    names: dict[str, str] = {}
    problems, unused = [], set(rules.renames)
    for stored in stored_names:
        wanted = stored
        for pattern, target in rules.renames.items():
            if fnmatchcase(stored, pattern):
                unused.discard(pattern)
                before, star, after = pattern.partition("*")
                middle = stored[len(before) : len(stored) - len(after)] if star else ""
                wanted = target.replace("*", middle, 1)
                break
        if wanted in names:
            problems.append(f"{wanted}: both {names[wanted]} and {stored} would get this name")
        names[wanted] = stored
    chosen = {wanted: stored for wanted, stored in names.items() if _fits(wanted, rules.only)}
    return chosen, problems + [f"rename {pattern!r}: matches no tensor" for pattern in sorted(unused)]


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _refuse(differences: Sequence[str], source: str) -> None:
    if differences:
        raise MismatchError(
            "\n  ".join([f"{source}: {len(differences)} differences from what is expected:", *differences])
        )
