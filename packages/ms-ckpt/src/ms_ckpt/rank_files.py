"""What the ranks of a parallel MindSpore training saved, each its own slices, put together by the strategy."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ms_ckpt.errors import InvalidCheckpointError, MismatchError
from ms_ckpt.mindspore_file import read_mindspore_file
from ms_ckpt.safetensors_file import read_safetensors_file
from ms_ckpt.strategy import Strategy, read_strategy
from ms_ckpt.tensor import NUMPY_DTYPES, Array, LazyTensor, Tensor, returned_form, words_of
from ms_ckpt.tiling import check_tiling

_FOLDER = re.compile(r"rank_(\d+)")


class _Piece:
    """A rank's slice of a tensor, and the ranks that hold a copy of it."""

    def __init__(self, rank: int, source: LazyTensor, offset: tuple[int, ...]) -> None:
        self.offset = offset
        self.shape = source.shape
        self.holders = [(rank, source)]

    def read(self, name: str) -> Array:
        """The words; raises MismatchError if the copies of two ranks differ."""
        first_rank, first = self.holders[0]
        words = words_of(name, first.read())[1]
        for rank, source in self.holders[1:]:
            other = words_of(name, source.read())[1]
            if words.tobytes() != other.tobytes():
                raise MismatchError(f"{name}: ranks {first_rank} and {rank} hold the same slice with other values")
        return words


def read_rank_files(folder: Path, strategy: Path, pattern: str = "*") -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """The whole tensors of `folder/rank_0`, `rank_1`, ..., each assembled when it is needed, and rank 0's strings.

    Args:
        folder: Holds one folder a rank, as MindSpore saves them, with one `.ckpt` or `.safetensors` file each.
        strategy: The strategy file of the training, merged, or a folder with one for each pipeline stage.
        pattern: Which file of a rank's folder to take, if there are several (`*-2_100.ckpt`).

    Raises:
        InvalidCheckpointError: a file is damaged or missing, or slices leave a gap.
        MismatchError: the number of ranks, or a tensor's slices, do not fit the strategy.
    """
    stages = read_strategy(strategy)
    paths = _rank_paths(folder, pattern)
    devices = {split.num_devices for splits in stages.values() for split in splits.values()}
    if len(devices) != 1 or len(paths) != max(devices) * len(stages):
        raise MismatchError(
            f"{folder}: {len(paths)} ranks, but the strategy has {len(stages)} pipeline stages of "
            f"{', '.join(map(str, sorted(devices)))} devices"
        )
    pieces: dict[str, dict[tuple[int, ...], _Piece]] = {}
    forms: dict[str, tuple[str, tuple[int, ...]]] = {}
    first_strings: dict[str, str] = {}
    problems = []
    for rank, path in enumerate(paths):
        is_safetensors = path.suffix == ".safetensors"
        tensors, strings = read_safetensors_file(path) if is_safetensors else read_mindspore_file(path)
        first_strings = strings if rank == 0 and not is_safetensors else first_strings
        for name, source in tensors.items():
            offset, whole = _place(stages, name, source, *divmod(rank, max(devices)))
            found = (source.dtype, whole)
            if forms.setdefault(name, found) != found:
                problems.append(f"{name}: {found[0]} {list(whole)} by rank {rank}, before {forms[name]}")
            piece = pieces.setdefault(name, {}).setdefault(offset, _Piece(rank, source, offset))
            if piece.holders[0][0] != rank:
                piece.holders.append((rank, source))
    if problems:
        raise MismatchError("\n  ".join([f"{folder}: the ranks' slices do not fit together:", *problems]))
    for name, found_pieces in pieces.items():
        check_tiling(forms[name][1], list(found_pieces.values()), f"{folder}: tensor {name}")
    return {name: _assembled(name, *forms[name], list(found.values())) for name, found in pieces.items()}, first_strings


def _rank_paths(folder: Path, pattern: str) -> list[Path]:
    """The file of each rank, in order; raises InvalidCheckpointError that lists every rank without exactly one."""
    folders = {int(match[1]): entry for entry in folder.iterdir() if (match := _FOLDER.fullmatch(entry.name))}
    paths, problems = [], []
    for rank in range(max(folders, default=-1) + 1):
        if rank not in folders:
            problems.append(f"rank_{rank}: missing")
            continue
        files = sorted(file for file in folders[rank].glob(pattern) if file.suffix in (".ckpt", ".safetensors"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files) or "none"
            problems.append(f"rank_{rank}: expected one file that fits {pattern!r} (--files), found {names}")
        paths += files[:1]
    if not folders:
        problems.append("no folders rank_0, rank_1, ...")
    if problems:
        raise InvalidCheckpointError("\n  ".join([f"{folder}: not the files of all ranks:", *problems]))
    return paths


def _place(
    stages: Strategy, name: str, source: LazyTensor, stage: int, device: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offset and whole shape of a rank's slice; what the strategy does not name is whole."""
    split = stages[stage].get(name)
    if split is None:
        return (0,) * len(source.shape), source.shape
    return split.block(device, source.shape, name)


def _assembled(name: str, dtype: str, shape: tuple[int, ...], pieces: Sequence[_Piece]) -> LazyTensor:
    def read() -> Tensor:
        whole = np.empty(shape, NUMPY_DTYPES[dtype])
        for piece in pieces:
            cut = tuple(slice(at, at + size) for at, size in zip(piece.offset, piece.shape, strict=True))
            whole[(*cut, ...)] = piece.read(name)
        return returned_form(dtype, whole)

    return LazyTensor(dtype=dtype, shape=shape, read=read)
