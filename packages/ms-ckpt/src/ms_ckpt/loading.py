"""From an open checkpoint to tensors or into memory: compared first, verified second, handed out last."""

from collections.abc import Callable, Mapping, Sequence

from ms_ckpt.cast import cast
from ms_ckpt.checkpoint import Checkpoint
from ms_ckpt.errors import MismatchError, ValuesError
from ms_ckpt.folder import CheckpointFolder
from ms_ckpt.rules import Expected, LoadRules, Match, match_tensors
from ms_ckpt.tensor import Tensor, spell_dtype, words_of

Slices = Mapping[str, Sequence[slice]]
"""By stored name, the block to read where not the whole tensor is wanted."""


def load_tensors(
    folder: CheckpointFolder, expected: Expected | None, rules: LoadRules | None, slices: Slices | None
) -> Checkpoint:
    """The tensors in fresh memory."""
    if expected is None and (absent := sorted((slices or {}).keys() - folder.index.tensors.keys())):
        raise MismatchError(f"{folder.path}: slices of tensors that it does not hold: {', '.join(absent)}")
    matches = _match(folder, expected, rules, slices)
    return _checkpoint(folder, _read(folder, matches, slices))


def load_into(
    folder: CheckpointFolder, targets: Mapping[str, Tensor], rules: LoadRules | None, slices: Slices | None
) -> Checkpoint:
    """Values, and the tensors in the targets' memory."""
    expected = {name: (spell_dtype(target.dtype, name), target.shape) for name, target in targets.items()}
    matches = _match(folder, expected, rules, slices)
    converted = _read(folder, {name: match for name, match in matches.items() if match.cast is not None}, slices)
    in_place = {match.stored: words_of(name, targets[name])[1] for name, match in matches.items() if match.cast is None}
    folder.read_into(in_place, slices)
    for name, tensor in converted.items():
        words_of(name, targets[name])[1][...] = words_of(name, tensor)[1]
    return _checkpoint(folder, {})


def load_each(
    folder: CheckpointFolder,
    expected: Expected,
    apply: Callable[[str, Tensor], None],
    rules: LoadRules | None,
    slices: Slices | None,
) -> Checkpoint:
    """Values; each tensor is given to `apply`, one at a time, after all were verified."""
    matches = _match(folder, expected, rules, slices)
    converted = _read(folder, {name: match for name, match in matches.items() if match.cast is not None}, slices)
    others = {name: match.stored for name, match in matches.items() if match.cast is None}
    folder.verify_blocks({stored: (slices or {}).get(stored) for stored in others.values()})
    for name, stored in others.items():
        apply(name, folder.read_all({stored: (slices or {}).get(stored)})[stored])
    for name, tensor in converted.items():
        apply(name, tensor)
    return _checkpoint(folder, {})


def verify_matches(folder: CheckpointFolder, rules: LoadRules | None, slices: Slices | None) -> None:
    """Reads what `load_tensors` would, and keeps nothing; raises InvalidCheckpointError at the first difference."""
    matches = _match(folder, None, rules, slices)
    folder.verify_blocks({match.stored: (slices or {}).get(match.stored) for match in matches.values()})


def _match(
    folder: CheckpointFolder, expected: Expected | None, rules: LoadRules | None, slices: Slices | None
) -> dict[str, Match]:
    shapes = {name: folder.shape_of(name, (slices or {}).get(name)) for name in folder.index.tensors}
    return match_tensors(folder.index, expected, rules or LoadRules(), str(folder.path), shapes)


def _read(folder: CheckpointFolder, matches: Mapping[str, Match], slices: Slices | None) -> dict[str, Tensor]:
    """Tensors by wanted name, converted; raises MismatchError that lists all whose values do not fit."""
    read = folder.read_all({match.stored: (slices or {}).get(match.stored) for match in matches.values()})
    tensors, problems = {}, []
    for name, match in matches.items():
        tensor = read.pop(match.stored)
        try:
            tensors[name] = tensor if match.cast is None else cast(tensor, match.cast, name)
        except ValuesError as error:
            problems.append(str(error))
    if problems:
        raise MismatchError("\n  ".join([f"{folder.path}: {len(problems)} tensors cannot be converted:", *problems]))
    return tensors


def _checkpoint(folder: CheckpointFolder, tensors: dict[str, Tensor]) -> Checkpoint:
    return Checkpoint(step=folder.step, tensors=tensors, values=folder.values, path=folder.path)
