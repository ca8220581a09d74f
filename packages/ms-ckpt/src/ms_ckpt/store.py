"""The checkpoints of a run under one root folder: save, load, verify, keep."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ms_ckpt.block import Block, Content, blocks_of
from ms_ckpt.checkpoint import Checkpoint
from ms_ckpt.commit import state_bytes
from ms_ckpt.config import CheckpointConfig
from ms_ckpt.errors import InvalidCheckpointError, SaveError, StepExistsError
from ms_ckpt.folder import CheckpointFolder, folder_name, open_folder, step_of
from ms_ckpt.folder_writer import write_folder
from ms_ckpt.loading import Slices, load_each, load_into, load_tensors, verify_matches
from ms_ckpt.lock import root_lock
from ms_ckpt.retention import Saved, metric_of, superfluous_steps
from ms_ckpt.rules import Expected, LoadRules
from ms_ckpt.staging import discard, publish, staging_folder, sweep_orphans
from ms_ckpt.tensor import Tensor

T = TypeVar("T")
_log = logging.getLogger(__name__)


class CheckpointStore:
    """Saves so that a kill at any moment leaves the last checkpoint loadable, and loads nothing unverified."""

    def __init__(self, root: Path | str, config: CheckpointConfig | None = None) -> None:
        """The folder `root` is created by the first save; without a config, the last three checkpoints stay."""
        self.root = Path(root)
        self.config = config if config is not None else CheckpointConfig()
        self._part: tuple[int | None, int | None] = (None, None)

    def save(
        self, step: int, tensors: Mapping[str, Content], values: Mapping[str, Any], *, replace: bool = False
    ) -> Path:
        """Saves a checkpoint, then deletes those that the configuration no longer keeps; returns the new folder.

        On return everything is on disk (fsync). A damaged checkpoint of the same step is replaced; a valid one only
        with `replace=True`, by exchanging the two folders in one step.

        Raises:
            ValuesError: a value or tensor cannot be stored exactly; nothing was written.
            StepExistsError: the step is saved already, and valid.
            SaveError: the disk is full, the folder cannot be written, another process is saving here, ...; earlier
                checkpoints are untouched.
        """
        return self.save_ranks(step, [blocks_of(tensors)], values, replace=replace)

    def save_ranks(
        self,
        step: int,
        ranks: Sequence[Mapping[str, Sequence[Block]]],
        values: Mapping[str, Any],
        *,
        replace: bool = False,
    ) -> Path:
        """Saves a checkpoint of several files, one for each of `ranks`, from this process; see `save`.

        Raises ValuesError if the blocks do not tile a tensor, naming the ranks.
        """
        state = state_bytes(step, values)  # refuses what cannot be stored before anything is written
        with self.publication(step, replace=replace) as staged:
            write_folder(staged, step, ranks, state)
        return self.root / folder_name(step)

    @contextmanager
    def publication(self, step: int, *, replace: bool = False) -> Iterator[Path]:
        """An empty folder to be filled with a checkpoint; it is published at the end, and retention follows.

        Raises StepExistsError and SaveError as `save` does.
        """
        final = self.root / folder_name(step)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with root_lock(self.root, self.config.lock_seconds):
                if final.exists() and not replace and self.is_valid(step):
                    raise StepExistsError(f"{final}: step {step} is already saved; pass replace=True to write it anew")
                sweep_orphans(self.root)
                with staging_folder(self.root, step) as staged:
                    yield staged
                    publish(staged, final)
                self._prune(step)
        except OSError as error:
            raise SaveError(
                f"{final}: step {step} was not saved: {error}; earlier checkpoints are untouched"
            ) from error

    def load(
        self,
        step: int | None = None,
        *,
        expected: Expected | None = None,
        rules: LoadRules | None = None,
        slices: Slices | None = None,
    ) -> Checkpoint | None:
        """Loads a step, or the newest valid one; None if there is no checkpoint at all.

        Every byte that is asked for is verified before anything is returned. Without `step`, damaged checkpoints are
        passed over, each with one warning that says why.

        Args:
            step: which one; it must be valid.
            expected: dtype (numpy's, or safetensors' spelling such as `BF16`) and shape of every tensor by name.
            rules: what may be left out, renamed or converted.
            slices: by stored name, the block to read where not the whole tensor is wanted (a rank's part, say).

        Raises:
            InvalidCheckpointError: the given step is missing or damaged, or every checkpoint is. Starting anew over
                damaged checkpoints must be the user's decision.
            MismatchError: the checkpoint differs from `expected`; all differences are listed.
        """
        return self._first_valid(step, lambda folder: load_tensors(folder, expected, rules, slices))

    def load_into(
        self,
        targets: Mapping[str, Tensor],
        step: int | None = None,
        *,
        rules: LoadRules | None = None,
        slices: Slices | None = None,
    ) -> Checkpoint | None:
        """Loads straight into arrays that exist; the returned checkpoint has values, but no tensors.

        The targets' dtypes and shapes are what is expected. Nothing of them changes before everything is verified, and
        no second copy is held (but of those that a rule converts). Otherwise as `load`.
        """
        return self._first_valid(step, lambda folder: load_into(folder, targets, rules, slices))

    def load_each(
        self,
        expected: Expected,
        apply: Callable[[str, Tensor], None],
        step: int | None = None,
        *,
        rules: LoadRules | None = None,
        slices: Slices | None = None,
    ) -> Checkpoint | None:
        """Gives each tensor to `apply(name, tensor)`, one at a time, after all were verified; otherwise as `load`.

        For memory that numpy cannot reach, such as a device's.
        """
        return self._first_valid(step, lambda folder: load_each(folder, expected, apply, rules, slices))

    @contextmanager
    def open(self, step: int) -> Iterator[CheckpointFolder]:
        """Opens a step for reading single tensors or slices, each verified as it is read; see `open_folder`."""
        with open_folder(self.root / folder_name(step)) as folder:
            if (folder.index.rank, folder.index.world_size) != self._part:
                raise InvalidCheckpointError(_explain_part(folder.index.rank, folder.index.world_size))
            yield folder

    def steps(self) -> list[int]:
        """The steps whose folder is whole (all but the tensors' bytes is checked; `verify` checks those too)."""
        return [step for step in self._folders() if self._describe(step, whole=False) is not None]

    def is_valid(self, step: int) -> bool:
        """Whether a step is there and every byte of it is what was saved."""
        return self._describe(step, whole=True) is not None

    def has_checkpoints(self) -> bool:
        """Whether there is any checkpoint, valid or not."""
        return bool(self._folders())

    def newest_valid(
        self, limit: int | None = None, *, rules: LoadRules | None = None, slices: Slices | None = None
    ) -> int | None:
        """The newest step, not above `limit`, of which everything that these rules and slices ask for is intact.

        Read and verified as `load` would, nothing kept; damaged ones are passed over with a warning. None if there is
        none.
        """
        for step in reversed(self._folders()):
            if limit is None or step <= limit:
                try:
                    with self.open(step) as folder:
                        verify_matches(folder, rules, slices)
                        return step
                except InvalidCheckpointError as error:
                    _log.warning("skipped a damaged checkpoint: %s", error)
        return None

    def verify(self, step: int) -> None:
        """Reads every byte of a step; raises InvalidCheckpointError with the first difference from what was saved."""
        with self.open(step) as folder:
            folder.verify()

    def prune(self, *, is_dry_run: bool = False) -> list[int]:
        """Deletes what the configuration does not keep, after reading every byte of all; returns those steps.

        A damaged checkpoint is neither counted nor deleted. Raises SaveError if another process is saving here.
        """
        if is_dry_run or not self.root.is_dir():
            return superfluous_steps(self._saved(whole=True), self.config)
        with root_lock(self.root, self.config.lock_seconds):
            steps = superfluous_steps(self._saved(whole=True), self.config)
            for step in steps:
                discard(self.root / folder_name(step))
        return steps

    def _first_valid(self, step: int | None, use: Callable[[CheckpointFolder], T]) -> T | None:
        if step is not None:
            with self.open(step) as folder:
                return use(folder)
        reasons = []
        for candidate in reversed(self._folders()):
            try:
                with self.open(candidate) as folder:
                    return use(folder)
            except InvalidCheckpointError as error:
                _log.warning("skipped a damaged checkpoint: %s", error)
                reasons.append(str(error))
        if reasons:
            raise InvalidCheckpointError("\n  ".join([f"{self.root}: none of its checkpoints is valid:", *reasons]))
        return None

    def _folders(self) -> list[int]:
        names = [entry.name for entry in self.root.iterdir()] if self.root.is_dir() else []
        return sorted(step for step in map(step_of, names) if step is not None)

    def _saved(self, *, whole: bool = False) -> list[Saved]:
        found = (self._describe(step, whole=whole) for step in self._folders())
        return [saved for saved in found if saved is not None]

    def _describe(self, step: int, *, whole: bool) -> Saved | None:
        """What retention asks of a valid checkpoint; None for a damaged one."""
        try:
            with self.open(step) as folder:
                if whole:
                    folder.verify()
                metric = metric_of(folder.values, self.config.best_metric)
                return Saved(step=step, time=(folder.path / "COMMIT").stat().st_mtime, metric=metric)
        except (InvalidCheckpointError, FileNotFoundError) as error:
            _log.debug("not valid: %s", error)
            return None

    def _prune(self, saved: int) -> None:
        for step in superfluous_steps(self._saved(), self.config, saved):
            try:
                discard(self.root / folder_name(step))
            except OSError as error:  # the new checkpoint is safe; one too many on disk is no reason to stop a run
                _log.warning("could not delete checkpoint %d: %s", step, error)


def _explain_part(rank: int | None, world_size: int | None) -> str:
    if rank is None:
        return "a whole checkpoint, expected a rank's part"
    return f"only rank {rank}'s part of {world_size}; bring the parts together and run: ms-ckpt merge ROOT PARTS..."
