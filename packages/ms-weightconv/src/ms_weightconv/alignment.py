"""Alignment of a folder's tensors with a family's table: everything is used once and made once, or nothing is done.

All differences of names and shapes are found before the first byte of a tensor is read.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ms_weightconv.contract import Config
from ms_weightconv.errors import RuleError
from ms_weightconv.family import Family
from ms_weightconv.parameters import Shape, parameter_shapes
from ms_weightconv.rules import Drop, Duplicate, Move, Rule, Tie
from ms_weightconv.tensor import Tensor
from ms_weightconv.words import Words


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """Tensors in the layout asked for, read when asked for, and what was left out."""

    tensors: dict[str, Tensor]
    """By name; order of the table or of the contract."""
    dropped: dict[str, str]
    """Names of source tensors that were left out, with the reason."""


def align_to_contract(family: Family, config: Config, source: Mapping[str, Tensor], what: str) -> Alignment:
    """Foreign tensors as tensors of contract `model`.

    Raises:
        RuleError: a tensor is missing, extra, of another shape or dtype than the rest of its rule, or a tied head
            differs from the embedding; all faults are in the one message.
    """
    stored = stored_name(family, source)
    moves, shapes = table_moves(family, config, len(source)), parameter_shapes(config)
    copies, dropped = _left_out(family, config, moves, source, stored)
    expected: dict[str, Shape] = {}
    for move in moves:
        theirs = move.backward_shapes([shapes[name] for name in move.ours], config)
        expected |= {stored(name): shape for name, shape in zip(move.theirs, theirs, strict=True)}
    _check(source, expected, [*dropped, *copies], what)
    _check_copies(source, copies, what)
    dropped |= {name: f"equal to {first}" for name, (first, _) in copies.items()}
    tensors = {}
    for move in moves:
        parts = [source[stored(name)] for name in move.theirs]
        dtype = _common_dtype(move.theirs, parts, what)
        for index, name in enumerate(move.ours):
            tensors[name] = Tensor(dtype, shapes[name], partial(_forward, move, parts, config, index))
    return Alignment(tensors={name: tensors[name] for name in shapes}, dropped=dropped)


def align_to_family(family: Family, config: Config, source: Mapping[str, Tensor], what: str) -> Alignment:
    """Tensors of contract `model` as a family's tensors; the inverse of `align_to_contract`, with its errors."""
    moves, shapes = table_moves(family, config, len(source)), parameter_shapes(config)
    _check(source, shapes, (), what)
    tensors = {}
    for move in moves:
        parts = [source[name] for name in move.ours]
        dtype = _common_dtype(move.ours, parts, what)
        theirs = move.backward_shapes([shapes[name] for name in move.ours], config)
        for index, (name, shape) in enumerate(zip(move.theirs, theirs, strict=True)):
            tensors[name] = Tensor(dtype, shape, partial(_backward, move, parts, config, index))
    return Alignment(tensors=tensors, dropped={})


def check_contract(config: Config, source: Mapping[str, Tensor], what: str) -> Alignment:
    """Tensors that have the names of contract `model` already, checked against a config; raises RuleError."""
    _check_layers(config, len(source), what)
    shapes = parameter_shapes(config)
    _check(source, shapes, (), what)
    return Alignment(tensors={name: source[name] for name in shapes}, dropped={})


def table_moves(family: Family, config: Config, num_tensors: int) -> list[Move]:
    """A family's moves under a config, each name of both sides checked to stand in exactly one of them.

    Raises:
        RuleError: the table makes a tensor twice, or not all of those that the config needs.
    """
    _check_layers(config, num_tensors, family.name)
    moves = [move for rule in family.rules if isinstance(rule, Rule | Tie) for move in rule.moves(config)]
    needed = set(parameter_shapes(config))
    theirs, ours = (Counter(name for move in moves for name in getattr(move, side)) for side in ("theirs", "ours"))
    faults = [f"{name}: used {count} times" for name, count in theirs.items() if count > 1]
    faults += [f"{name}: produced {count} times" for name, count in ours.items() if count > 1]
    faults += [f"{name}: produced by no rule" for name in sorted(needed - set(ours))]
    faults += [f"{name}: produced, but no parameter under this config" for name in sorted(set(ours) - needed)]
    if faults:
        raise RuleError(f"table of {family.name}: " + _listed(faults))
    return moves


def _check_layers(config: Config, num_tensors: int, what: str) -> None:
    # Before names are made for every layer: a config can name more layers than there is memory.
    if config["num_hidden_layers"] > num_tensors:
        raise RuleError(
            f"{what}: num_hidden_layers is {config['num_hidden_layers']}, but there are {num_tensors} tensors"
        )


def stored_name(family: Family, source: Iterable[str]) -> Callable[[str], str]:
    """How a folder spells the names of a family's table: files of the bare model lack the prefix, old ones differ."""
    names = set(source)
    prefix = "" if any(name.startswith(family.prefix) for name in names) else family.prefix

    def stored(name: str) -> str:
        short = name.removeprefix(prefix) if prefix else name
        for old, new in family.spellings:
            former = short.removesuffix(new) + old
            if short.endswith(new) and short not in names and former in names:
                return former
        return short

    return stored


def _left_out(
    family: Family, config: Config, moves: list[Move], source: Mapping[str, Tensor], stored: Callable[[str], str]
) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
    """Second copies, each with its first one and what to do when they differ; and dropped names with the reason."""
    dropped: dict[str, str] = {}
    copies: dict[str, tuple[str, str]] = {}
    for rule in family.rules:
        if isinstance(rule, Drop):
            dropped |= {stored(name): rule.reason for name in rule.names(config) if stored(name) in source}
        elif isinstance(rule, Tie) and config["tie_word_embeddings"] and rule.theirs in source:
            (first,) = next(move.theirs for move in moves if move.ours == (rule.to,))
            advice = (
                "tie_word_embeddings is true; set it to false in config.json to keep both, or delete "
                f"{rule.theirs} ({family.name} would replace it by the embedding)"
            )
            copies[rule.theirs] = (stored(first), advice)
        elif isinstance(rule, Duplicate) and rule.theirs in source:
            copies[rule.theirs] = (stored(rule.of), "they must be the same; delete the wrong one")
    return copies, dropped


def _check(source: Mapping[str, Tensor], expected: Mapping[str, Shape], allowed: Iterable[str], what: str) -> None:
    known = {*expected, *allowed}
    faults = [f"{name}: missing, expected {list(shape)}" for name, shape in expected.items() if name not in source]
    faults += [f"{name}: not expected" for name in source if name not in known]
    faults += [
        f"{name}: found shape {list(source[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in source and source[name].shape != shape
    ]
    if faults:
        raise RuleError(f"{what}: tensors and config do not match, {len(faults)} faults: {_listed(faults)}")


def _check_copies(source: Mapping[str, Tensor], copies: Mapping[str, tuple[str, str]], what: str) -> None:
    for name, (first_name, advice) in copies.items():
        copy, first = source[name], source[first_name]
        same = copy.dtype == first.dtype and copy.shape == first.shape
        if not same or not np.array_equal(copy.read(), first.read()):
            raise RuleError(f"{what}: {name} differs from {first_name}: {advice}")


def _common_dtype(names: Iterable[str], parts: list[Tensor], what: str) -> str:
    dtypes = {part.dtype for part in parts}
    if len(dtypes) > 1:
        found = ", ".join(f"{name} {part.dtype}" for name, part in zip(names, parts, strict=True))
        raise RuleError(f"{what}: {found}: one tensor of the other layout; choose one dtype for all (--dtype)")
    return parts[0].dtype


def _forward(move: Move, parts: list[Tensor], config: Config, index: int) -> Words:
    return move.forward([part.read() for part in parts], config, index)[0]


def _backward(move: Move, parts: list[Tensor], config: Config, index: int) -> Words:
    return move.backward([part.read() for part in parts], config, index)[0]


def _listed(faults: list[str]) -> str:
    return "; ".join(faults)
