"""Ranks, launch, plans and checks for distributed MindSpore training."""

from ms_parallel.__about__ import __version__
from ms_parallel.config import ParallelConfig, from_mapping
from ms_parallel.doctor import Finding, examine
from ms_parallel.errors import ConfigError, DivergedError, LaunchError, ParallelError, PlanError, RankError
from ms_parallel.launch import launch
from ms_parallel.plan import check_plan, plan
from ms_parallel.ranks import Rank, current_rank

__all__ = [
    "ConfigError",
    "DivergedError",
    "Finding",
    "LaunchError",
    "ParallelConfig",
    "ParallelError",
    "PlanError",
    "Rank",
    "RankError",
    "__version__",
    "check_plan",
    "current_rank",
    "examine",
    "from_mapping",
    "launch",
    "plan",
]
