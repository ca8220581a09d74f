"""Proof that two folders hold the same model, whatever their layouts: every tensor, every word, both directions."""

import time
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ms_weightconv.alignment import Alignment, align_to_family, stored_name
from ms_weightconv.contract import Config
from ms_weightconv.conversion import cast_tensors
from ms_weightconv.errors import ProofError
from ms_weightconv.family import Family
from ms_weightconv.mapping import live_config
from ms_weightconv.progress import Progress
from ms_weightconv.report import Report
from ms_weightconv.source import Source, open_source
from ms_weightconv.tensor import Tensor, checksum
from ms_weightconv.vocabulary import without_padding
from ms_weightconv.words import CASTABLE, CastLoss


def prove(
    source: Path,
    target: Path,
    *,
    family: str | Family | None = None,
    config: Path | Mapping[str, Any] | None = None,
    naming: str | None = None,
    progress: bool = True,
) -> Report:
    """Proves that a target holds exactly the source's model.

    Both are brought to contract `model`, without padding of the vocabulary. Then their configs, counts, names, shapes
    and dtypes must agree, every tensor must be equal word for word, and every tensor of a Hugging Face side, sent there
    and back, must be what it was. Where the target was cast, the source is cast alike before it is compared; the report
    names what that lost.

    Args:
        source: a folder of any layout.
        target: another one.
        family: as in `convert`.
        config: as in `convert`, for checkpoints without a config.
        naming: as in `convert`.
        progress: show a bar on terminals, log lines elsewhere.

    Returns:
        The evidence, with the checksum of each tensor in the layout of contract `model`.

    Raises:
        ProofError: something differs; all differences are named.
        SourceError, ConfigError, RuleError: one of the two cannot be read, or does not fit its own config.
    """
    start = time.monotonic()
    first = open_source(Path(source), family=family, config=config, naming=naming)
    second = open_source(Path(target), family=family, config=config, naming=naming)
    ours, theirs = first.align(), second.align()
    (left, ours_alone), (right, theirs_alone) = (
        without_padding(side.config, aligned.tensors) for side, aligned in ((first, ours), (second, theirs))
    )
    faults = _config_faults(left, right)
    losses: dict[str, CastLoss] = {}
    checksums = {}
    size = sum(tensor.num_bytes for tensor in theirs_alone.values())
    with Progress("prove", size, progress) as bar:
        for name in dict.fromkeys([*ours_alone, *theirs_alone]):
            if fault := _tensor_fault(name, ours_alone.get(name), theirs_alone.get(name), losses):
                faults.append(fault)
                continue
            checksums[name] = f"crc32:{checksum(theirs_alone[name]):08x}"
            bar.add(theirs_alone[name].num_bytes)
    for side, aligned in ((first, ours), (second, theirs)):
        faults += _round_trip_faults(side, aligned)
    if faults:
        raise ProofError(f"{source} and {target} differ: {'; '.join(faults)}")
    return Report(
        source=Path(source),
        target=Path(target),
        layouts=(first.layout, second.layout),
        family=first.config["model_type"],
        num_tensors=len(checksums),
        num_parameters=sum(prod(tensor.shape) for tensor in theirs_alone.values()),
        num_bytes=size,
        seconds=time.monotonic() - start,
        checksums=checksums,
        dropped={**ours.dropped, **theirs.dropped},
        casts=losses,
        carried_fields=first.carried,
        unknown_fields=first.unknown,
        notes=(*first.notes, *second.notes),
    )


def _config_faults(first: Config, second: Config) -> list[str]:
    left, right = live_config(first), live_config(second)
    return [
        f"config {key}: {left.get(key)!r} and {right.get(key)!r}"
        for key in dict.fromkeys([*left, *right])
        if left.get(key) != right.get(key)
    ]


def _tensor_fault(name: str, first: Tensor | None, second: Tensor | None, losses: dict[str, CastLoss]) -> str | None:
    if first is None or second is None:
        return f"{name}: only in the {'target' if first is None else 'source'}"
    if first.shape != second.shape:
        return f"{name}: shape {list(first.shape)} and {list(second.shape)}"
    if first.dtype != second.dtype:
        if not {first.dtype, second.dtype} <= set(CASTABLE):
            return f"{name}: dtype {first.dtype} and {second.dtype}"
        first = cast_tensors({name: first}, second.dtype, losses)[name]
    left, right = first.read(), second.read()
    if not np.array_equal(left, right):
        return f"{name}: {int(np.count_nonzero(left != right)):,} of {left.size:,} words differ"
    return None


def _round_trip_faults(side: Source, aligned: Alignment) -> list[str]:
    if side.table is None:
        return []
    back = align_to_family(side.table, side.config, aligned.tensors, str(side.path)).tensors
    stored = stored_name(side.table, side.tensors)
    faults = []
    for name, tensor in back.items():
        original = side.tensors[stored(name)]
        if original.shape != tensor.shape or not np.array_equal(original.read(), tensor.read()):
            faults.append(f"{name}: does not come back from the way there and back")
    kept = {stored(name) for name in back}
    faults += [f"{name}: lost" for name in side.tensors if name not in kept and name not in aligned.dropped]
    return faults
