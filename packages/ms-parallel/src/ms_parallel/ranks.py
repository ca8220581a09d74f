"""Which rank this process is, as its launcher said in the environment."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ms_parallel.errors import RankError

# msrun sets RANK_ID, RANK_SIZE, DEVICE_ID and the MS_ names; mpirun sets the OMPI_ (Open MPI) or PMI_ (MPICH) names.
_RANK = ("RANK_ID", "MS_NODE_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = ("RANK_SIZE", "MS_WORKER_NUM", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "DEVICE_ID")


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A process's place in its job."""

    rank: int
    """From 0 to world_size - 1."""
    world_size: int
    """Number of processes that compute."""
    local_rank: int
    """Place on its machine, which is the device that it uses."""
    is_scheduler: bool = False
    """True in msrun's scheduler, which runs the same program but computes nothing: call `init` there and nothing else.
    `ms_parallel.launch` starts schedulers by itself; only a bare msrun lets one reach your program."""


def current_rank(environ: Mapping[str, str] | None = None, devices: Path = Path("/dev")) -> Rank:
    """This process's rank: rank 0 of 1 if no launcher said anything.

    Args:
        environ: the environment; the process's own by default.
        devices: where the driver shows Ascend devices (davinci0, davinci1, ...).

    Raises:
        RankError: two variables contradict each other, one is missing or no number, or the device does not exist.
    """
    environ = os.environ if environ is None else environ
    world_size = _agreed(environ, _WORLD_SIZE)
    rank = _agreed(environ, _RANK)
    is_scheduler = environ.get("MS_ROLE") == "MS_SCHED"
    if world_size is None and rank:
        raise RankError(f"rank {rank}, but no world size; set RANK_SIZE, or start the job by `ms-parallel launch`")
    if world_size == 0:
        raise RankError("world size 0; expected at least 1")
    if rank is None and (world_size or 1) > 1:
        raise RankError(
            f"world size {world_size}, but no rank: {', '.join(_RANK)} are all unset; "
            "every process would take itself for rank 0. Start the job by `ms-parallel launch`"
        )
    rank, world_size = rank or 0, world_size or 1
    if rank >= world_size:
        raise RankError(f"rank {rank} in a world of {world_size}; ranks go from 0 to {world_size - 1}")
    given = [name for name in _LOCAL_RANK if name in environ]
    local_rank = _number(environ, given[0]) if given else rank
    _check_device(environ, local_rank, devices)
    return Rank(rank=rank, world_size=world_size, local_rank=local_rank, is_scheduler=is_scheduler)


def _agreed(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    found = {name: _number(environ, name) for name in names if name in environ}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name}={value}" for name, value in found.items())
        raise RankError(f"two launchers disagree: {said}; unset those that are left over from another")
    return next(iter(found.values()), None)


def _number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise RankError(f"{name}={environ[name]!r}: expected a whole number >= 0")
    return int(environ[name])


def _check_device(environ: Mapping[str, str], device: int, devices: Path) -> None:
    present = sorted(
        int(name) for entry in devices.glob("davinci[0-9]*") if (name := entry.name.removeprefix("davinci")).isdecimal()
    )
    if present and device not in present:
        said = f"DEVICE_ID={environ['DEVICE_ID']}" if "DEVICE_ID" in environ else f"local rank {device}"
        raise RankError(f"{said}: no such device; this machine has {', '.join(map(str, present))}")
