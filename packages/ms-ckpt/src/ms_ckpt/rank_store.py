"""Several processes that share a disk save one checkpoint and read back only what each of them needs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ms_ckpt.agreement import common_step
from ms_ckpt.block import Content, blocks_of, rank_file, write_blocks
from ms_ckpt.checkpoint import Checkpoint
from ms_ckpt.commit import state_bytes
from ms_ckpt.errors import SaveError, StepExistsError, ValuesError
from ms_ckpt.folder import folder_name
from ms_ckpt.folder_writer import commit_parts
from ms_ckpt.gathering import Gathering, announced, collect_parts, contribute, join_gathering, outcome
from ms_ckpt.loading import Slices
from ms_ckpt.rules import Expected, LoadRules
from ms_ckpt.store import CheckpointStore


class RankStore:
    """One rank's side of a store that `world_size` processes use together.

    The ranks need no channel but the folder. Each writes its own file; rank 0 commits when all are durable.
    """

    def __init__(
        self, store: CheckpointStore, *, rank: int, world_size: int, run: str = "", wait_seconds: float = 600
    ) -> None:
        """`store` has the same root on all ranks.

        Args:
            store: Where to save; rank 0's configuration decides about retention.
            rank: Which rank this process is, from 0.
            world_size: How many ranks save together.
            run: Any text that the ranks of one launch share and those of another do not (a job id, say); keeps the
                survivors of a launch that was not wholly killed apart from the next.
            wait_seconds: How long ranks wait for each other, compiling and evaluating included.
        """
        if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
            raise ValuesError(f"rank {rank!r} of {world_size!r}: expected 0 <= rank < world_size")
        self.store = store
        self.rank, self.world_size = rank, world_size
        self._run = run
        self._wait_seconds = wait_seconds

    def save(
        self, step: int, tensors: Mapping[str, Content], values: Mapping[str, Any], *, replace: bool = False
    ) -> Path:
        """Saves this rank's blocks; returns the folder when all ranks' parts are on disk and committed.

        A tensor that is no `Block` counts as whole, and one rank gives it. Rank 0's `values` are the ones stored.

        Raises:
            ValuesError: a value or tensor cannot be stored, or the ranks' blocks do not tile a tensor (rank 0).
            StepExistsError: the step is saved already, and valid.
            SaveError: a rank is missing (named by rank 0), or something could not be written, here or on another rank;
                earlier checkpoints are untouched.
        """
        gathering = Gathering(step=step, world_size=self.world_size, run=self._run)
        if self.rank > 0:
            return self._take_part(gathering, tensors, replace=replace)
        state = state_bytes(step, values)
        blocks = blocks_of(tensors)
        with self.store.publication(step, replace=replace) as staged:
            with announced(staged, gathering):
                first = write_blocks(staged, 0, blocks)
                parts = collect_parts(staged, gathering, self._wait_seconds)
            others = [(parts[rank].files[rank_file(rank)], parts[rank].tensors) for rank in sorted(parts)]
            commit_parts(staged, step, [first, *others], state)
        return self.store.root / folder_name(step)

    def load(
        self,
        step: int | None = None,
        *,
        agree: Callable[[int], int] | None = None,
        expected: Expected | None = None,
        rules: LoadRules | None = None,
        slices: Slices | None = None,
    ) -> Checkpoint | None:
        """Loads this rank's `slices` of a step, or of the newest step that is valid for all ranks; None if none is.

        Args:
            step: Which one.
            agree: Returns the smallest of the numbers that the ranks call it with (an all-reduce, say). Without a step
                it decides which one all ranks load: damage that only one rank would see must not part them.
            expected: As for `CheckpointStore.load`, of this rank's blocks.
            rules: As there.
            slices: As there; what is not named is read whole.

        Raises:
            ValuesError: neither step nor `agree` was given, and there are several ranks.
            InvalidCheckpointError, MismatchError: as `CheckpointStore.load` does.
        """
        if step is None and self.world_size > 1:
            if agree is None:
                raise ValuesError(
                    f"{self.store.root}: which step all {self.world_size} ranks load must be agreed: give `step`, or "
                    "`agree`, which returns the smallest of the ranks' numbers"
                )
            step = common_step(self.store, agree, rules, slices)
            if step is None:
                return None
        return self.store.load(step, expected=expected, rules=rules, slices=slices)

    def _take_part(self, gathering: Gathering, tensors: Mapping[str, Content], *, replace: bool) -> Path:
        final = self.store.root / folder_name(gathering.step)
        if final.exists() and not replace and self.store.is_valid(gathering.step):
            raise StepExistsError(
                f"{final}: step {gathering.step} is already saved; pass replace=True to write it anew"
            )
        try:
            staged = join_gathering(self.store.root, gathering, self._wait_seconds)
            with outcome(staged, final, self._wait_seconds):
                contribute(staged, self.rank, gathering, tensors)
        except OSError as error:
            raise SaveError(f"{final}: rank {self.rank}: step {gathering.step} was not saved: {error}") from error
        return final
