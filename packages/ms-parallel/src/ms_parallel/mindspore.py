"""The parts that need MindSpore: joining the job, sums over ranks, equal weights."""

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ms_parallel.errors import DivergedError, ParallelError, RankError
from ms_parallel.ranks import Rank, current_rank

try:
    import mindspore
    from mindspore import communication, nn, ops
except ImportError as missing:
    raise ParallelError(f'{missing}; install it by: pip install "ms-parallel[mindspore]"') from missing

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor


def init() -> Rank:
    """Joins the job that the launcher started and returns this process's rank; nothing to do for a world of one.

    Call it before anything else that touches MindSpore. It waits for all ranks.

    Raises:
        RankError: MindSpore sees another rank or world size than the environment says, or ranks are not distinct.
    """
    rank = current_rank()
    if rank.world_size == 1 and not rank.is_scheduler:
        return rank
    try:
        communication.init()
    except RuntimeError as error:
        raise RankError(f"rank {rank.rank} of {rank.world_size} could not join the job: {error}") from error
    found = (communication.get_rank(), communication.get_group_size())
    if found != (rank.rank, rank.world_size):
        raise RankError(
            f"MindSpore says rank {found[0]} of {found[1]}, the environment rank {rank.rank} of {rank.world_size}"
        )
    mine = np.zeros(rank.world_size, np.float32)
    mine[rank.rank] = 1
    counts = AllReduceSum()(mindspore.Tensor(mine)).asnumpy()
    if not (counts == 1).all():
        raise RankError(f"ranks are not distinct; processes per rank: {counts.astype(int).tolist()}")
    return rank


class AllReduceSum(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """The sum of a tensor over ranks, the same on each; with one rank, the tensor itself.

    Made for gradients and counts inside a graph-mode training cell. Its own gradient is again a sum over ranks.
    """

    def __init__(self, ranks: Sequence[int] | None = None) -> None:
        """Sums over `ranks` (a `data` group of the plan), all by default; every one of them must make this cell.

        Raises RankError if the launcher started several ranks but `init` was not called: each would train alone.
        """
        super().__init__()
        rank = current_rank()
        self.group_size = rank.world_size if ranks is None else len(ranks)
        if self.group_size > 1:
            if not communication.GlobalComm.INITED:
                raise RankError(f"a world of {rank.world_size} ranks was not joined; call ms_parallel.mindspore.init()")
            self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, _group(ranks))

    def construct(self, tensor: "Tensor") -> "Tensor":
        """The sum; float16 or float32 on CPU."""
        if self.group_size == 1:
            return tensor
        return self.all_reduce(tensor)


def broadcast_parameters(parameters: "Mapping[str, Parameter]", root: int = 0) -> None:
    """Gives every rank the values of rank `root`."""
    if current_rank().world_size == 1:
        return
    broadcast = ops.Broadcast(root)
    for parameter in parameters.values():
        parameter.set_data(broadcast((parameter,))[0])


def check_equal_parameters(parameters: "Mapping[str, Parameter]") -> None:
    """Raises DivergedError, naming the first parameters and ranks, unless all ranks hold the same bits."""
    rank = current_rank()
    if rank.world_size == 1:
        return
    names = sorted(parameters)
    # Checksums as 16-bit halves: whole numbers that float32 holds, in this rank's row of a table of all ranks.
    table = np.zeros((rank.world_size, len(names), 2), np.float32)
    for place, name in enumerate(names):
        checksum = zlib.crc32(parameters[name].asnumpy().tobytes())
        table[rank.rank, place] = (checksum >> 16, checksum & 0xFFFF)
    table = AllReduceSum()(mindspore.Tensor(table)).asnumpy()
    different = [
        f"{name} (ranks {', '.join(map(str, np.flatnonzero(odd)))} differ from rank 0)"
        for place, name in enumerate(names)
        if (odd := (table[:, place] != table[0, place]).any(axis=-1)).any()
    ]
    if different:
        raise DivergedError(f"{len(different)} of {len(names)} parameters differ: {'; '.join(different[:5])}")


def _group(ranks: Sequence[int] | None) -> str:
    """The name of the communication group of these ranks, created at its first use."""
    if ranks is None:
        return str(communication.GlobalComm.WORLD_COMM_GROUP)
    name = "ranks-" + "-".join(map(str, ranks))
    if name not in _groups:
        communication.create_group(name, list(ranks))
        _groups.add(name)
    return name


_groups: set[str] = set()
