"""The checkpoints of a run under one root folder: save, load, verify, keep."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import DTypeLike

from ms_ckpt.checkpoint import Checkpoint, check_expected
from ms_ckpt.config import CheckpointConfig
from ms_ckpt.errors import InvalidCheckpointError, SaveError, StepExistsError
from ms_ckpt.block import whole
from ms_ckpt.commit import state_bytes
from ms_ckpt.folder import CheckpointFolder, folder_name, open_folder, step_of
from ms_ckpt.folder_writer import write_folder
from ms_ckpt.retention import superfluous_steps
from ms_ckpt.staging import discard, publish, staging_folder, sweep_orphans
from ms_ckpt.tensor import Tensor

_log = logging.getLogger(__name__)


class CheckpointStore:
    """Saves so that a kill at any moment leaves the last checkpoint loadable, and loads nothing unverified."""

    def __init__(self, root: Path | str, config: CheckpointConfig | None = None) -> None:
        """The folder `root` is created by the first save; without a config, the last three checkpoints stay."""
        self.root = Path(root)
        self.config = config if config is not None else CheckpointConfig()

    def save(
        self, step: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, replace: bool = False
    ) -> Path:
        """Saves a checkpoint, then deletes those that the configuration no longer keeps; returns the new folder.

        On return everything is on disk (fsync). A damaged checkpoint of the same step is replaced; a valid one only
        with `replace=True`, by exchanging the two folders in one step.

        Raises:
            ValuesError: a value or tensor cannot be stored exactly; nothing was written.
            StepExistsError: the step is saved already, and valid.
            SaveError: the disk is full, the folder cannot be written, ...; earlier checkpoints are untouched.
        """
        final = self.root / folder_name(step)
        state = state_bytes(step, values)  # refuses what cannot be stored before anything is written
        blocks = {name: [whole(tensor, name)] for name, tensor in tensors.items()}
        if final.exists() and not replace and self._is_valid(step, whole=True):
            raise StepExistsError(f"{final}: step {step} is already saved; pass replace=True to write it anew")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            sweep_orphans(self.root)
            with staging_folder(self.root, step) as staged:
                write_folder(staged, step, [blocks], state)
                publish(staged, final)
        except OSError as error:
            raise SaveError(
                f"{final}: step {step} was not saved: {error}; earlier checkpoints are untouched"
            ) from error
        self._prune(step)
        return final

    def load(
        self,
        step: int | None = None,
        *,
        expected: Mapping[str, tuple[DTypeLike | str, Sequence[int]]] | None = None,
    ) -> Checkpoint | None:
        """Loads a step, or the newest valid one; None if there is no checkpoint at all.

        Every byte is verified before anything is returned. Without `step`, damaged checkpoints are passed over, each
        with one warning that says why.

        Args:
            step: which one; it must be valid.
            expected: dtype (numpy's, or safetensors' spelling such as `BF16`) and shape of every tensor by name.

        Raises:
            InvalidCheckpointError: the given step is missing or damaged, or every checkpoint is. Starting anew over
                damaged checkpoints must be the user's decision.
            MismatchError: the checkpoint differs from `expected`; all differences are listed.
        """
        if step is not None:
            return _load_folder(self.root / folder_name(step), expected)
        reasons = []
        for candidate in reversed(self._folders()):
            try:
                return _load_folder(self.root / folder_name(candidate), expected)
            except InvalidCheckpointError as error:
                _log.warning("skipped a damaged checkpoint: %s", error)
                reasons.append(str(error))
        if reasons:
            raise InvalidCheckpointError("\n  ".join([f"{self.root}: none of its checkpoints is valid:", *reasons]))
        return None

    @contextmanager
    def open(self, step: int) -> Iterator[CheckpointFolder]:
        """Opens a step for reading single tensors or slices, each verified as it is read; see `open_folder`."""
        with open_folder(self.root / folder_name(step)) as folder:
            yield folder

    def steps(self) -> list[int]:
        """The steps whose folder is whole (all but the tensors' bytes is checked; `verify` checks those too)."""
        return [step for step in self._folders() if self._is_valid(step)]

    def verify(self, step: int) -> None:
        """Reads every byte of a step; raises InvalidCheckpointError with the first difference from what was saved."""
        with self.open(step) as folder:
            folder.verify()

    def prune(self, *, is_dry_run: bool = False) -> list[int]:
        """Deletes what the configuration does not keep, after reading every byte of all; returns those steps.

        A damaged checkpoint is neither counted nor deleted.
        """
        valid = [step for step in self._folders() if self._is_valid(step, whole=True)]
        steps = superfluous_steps(valid, self.config)
        for step in steps if not is_dry_run else []:
            discard(self.root / folder_name(step))
        return steps

    def _folders(self) -> list[int]:
        names = [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
        return sorted(step for step in map(step_of, names) if step is not None)

    def _is_valid(self, step: int, *, whole: bool = False) -> bool:
        try:
            with self.open(step) as folder:
                if whole:
                    folder.verify()
        except InvalidCheckpointError as error:
            _log.debug("not valid: %s", error)
            return False
        return True

    def _prune(self, saved: int) -> None:
        for step in superfluous_steps(self.steps(), self.config, saved):
            try:
                discard(self.root / folder_name(step))
            except OSError as error:  # the new checkpoint is safe; one too many on disk is no reason to stop a run
                _log.warning("could not delete checkpoint %d: %s", step, error)


def _load_folder(path: Path, expected: Mapping[str, tuple[DTypeLike | str, Sequence[int]]] | None) -> Checkpoint:
    with open_folder(path) as folder:
        if expected is not None:
            check_expected(folder.index, expected, str(path))
        tensors = folder.read_all(dict.fromkeys(folder.index.tensors))
        return Checkpoint(step=folder.step, tensors=tensors, values=folder.values, path=path)
