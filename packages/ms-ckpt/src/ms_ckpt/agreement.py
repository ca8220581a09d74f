"""Which step all ranks of a job load, when each of them can see only whether its own part is intact."""

from collections.abc import Callable

from ms_ckpt.errors import InvalidCheckpointError
from ms_ckpt.loading import Slices
from ms_ckpt.rules import LoadRules
from ms_ckpt.store import CheckpointStore


def common_step(
    store: CheckpointStore, agree: Callable[[int], int], rules: LoadRules | None, slices: Slices | None
) -> int | None:
    """The newest step of which what each rank reads is valid; the same on all ranks, None if there is no checkpoint.

    Each round proposes the newest step, not above the last answer, that is valid here; `agree` answers with the
    smallest proposal. When the answer repeats, every rank has found that step valid: none could propose more, and one
    that had found it damaged would have proposed less.

    Raises InvalidCheckpointError on all ranks if there are checkpoints and no step is valid for all.
    """
    limit: int | None = None
    while True:
        mine = store.newest_valid(limit, rules=rules, slices=slices)
        common = agree(-1 if mine is None else mine)
        if common < 0:
            # asked on all ranks: one that lost its disk must not start anew while the others refuse
            if -agree(-int(store.has_checkpoints())):
                raise InvalidCheckpointError(
                    f"{store.root}: no checkpoint is valid for all ranks; what is wrong with them stands in the "
                    "warnings above, or in those of another rank"
                )
            return None
        if common == limit:
            return common
        limit = common
