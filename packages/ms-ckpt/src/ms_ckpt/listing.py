"""The checkpoints that a path given on a command line means."""

import re
from pathlib import Path

from ms_ckpt.config import CheckpointConfig
from ms_ckpt.errors import CkptError, InvalidCheckpointError, MismatchError
from ms_ckpt.folder import folder_name, open_folder, step_of
from ms_ckpt.part_store import PartStore
from ms_ckpt.store import CheckpointStore

_PARTS = re.compile(r"rank-(\d{5,})-of-(\d{5,})")


def checkpoint_folders(path: Path) -> list[Path]:
    """The path itself if it is a checkpoint; otherwise those under it, and under its ranks' folders, in order.

    Raises CkptError if there are none.
    """
    if step_of(path.name) is not None:
        return [path]
    roots = [path, *sorted(entry for entry in path.iterdir() if _PARTS.fullmatch(entry.name))]
    found = [entry for root in roots for entry in _step_folders(root)]
    if not found:
        raise CkptError(f"{path}: no checkpoints")
    return found


def newest_valid(path: Path) -> Path:
    """The path itself if it is a checkpoint; otherwise the newest one under it whose documents and headers are whole.

    Raises CkptError if there is none.
    """
    if step_of(path.name) is not None:
        return path
    for folder in reversed(_step_folders(path)):
        if problem_of(folder, is_quick=True) is None:
            return folder
    raise CkptError(f"{path}: no valid checkpoint")


def problem_of(folder: Path, *, is_quick: bool) -> str | None:
    """What is wrong with a checkpoint, or None; `is_quick` looks at all but the tensors' bytes."""
    try:
        with open_folder(folder) as opened:
            if not is_quick:
                opened.verify()
    except InvalidCheckpointError as error:
        return str(error).removeprefix(f"{folder}: ")
    return None


def store_at(root: Path, config: CheckpointConfig) -> CheckpointStore:
    """The store whose folder this is: of whole checkpoints, or of one rank's parts."""
    match = _PARTS.fullmatch(root.resolve().name)
    if match is None:
        return CheckpointStore(root, config)
    return PartStore(root.resolve().parent, config, rank=int(match[1]), world_size=int(match[2]))


def parts_of_one_step(paths: list[Path], step: int | None) -> list[Path]:
    """The part folders that `paths` mean: part folders themselves, ranks' folders, or folders that hold some.

    Without a step, the newest one of which every rank's part is valid (every byte is read).

    Raises MismatchError if the parts have no valid step in common.
    """
    if all(step_of(path.name) is not None for path in paths):
        return paths
    ranks = [rank for path in paths for rank in ([path] if _PARTS.fullmatch(path.name) else _rank_folders(path))]
    if step is None:
        valid = [{f.name for f in _step_folders(rank) if problem_of(f, is_quick=False) is None} for rank in ranks]
        common = set.intersection(*valid) if valid else set()
        if not common:
            lists = [f"{rank}: {', '.join(sorted(names)) or 'none'}" for rank, names in zip(ranks, valid, strict=True)]
            raise MismatchError("\n  ".join(["no step of which all parts are valid; valid are", *lists]))
        return [rank / max(common, key=lambda name: step_of(name) or 0) for rank in ranks]
    return [rank / folder_name(step) for rank in ranks]


def _rank_folders(path: Path) -> list[Path]:
    found = sorted(entry for entry in path.iterdir() if _PARTS.fullmatch(entry.name))
    if not found:
        raise CkptError(f"{path}: neither a part (step-00001000) nor a folder of ranks (rank-00000-of-00004)")
    return found


def _step_folders(root: Path) -> list[Path]:
    folders = [(step, entry) for entry in root.iterdir() if (step := step_of(entry.name)) is not None]
    return [folder for _, folder in sorted(folders)]
