"""Checkpoints that are never torn, never trusted blindly, and load anywhere."""

from ms_ckpt.__about__ import __version__
from ms_ckpt.async_saver import AsyncSaver
from ms_ckpt.block import Block
from ms_ckpt.checkpoint import Checkpoint
from ms_ckpt.config import CheckpointConfig, from_mapping
from ms_ckpt.errors import (
    CkptError,
    ConfigError,
    InvalidCheckpointError,
    MismatchError,
    SaveError,
    StepExistsError,
    ValuesError,
)
from ms_ckpt.folder import CheckpointFolder, open_folder
from ms_ckpt.layout import Layout, layout_of_plan, split_layout
from ms_ckpt.part_store import PartStore, merge_parts
from ms_ckpt.rank_store import RankStore
from ms_ckpt.resharding import reshard
from ms_ckpt.rules import LoadRules
from ms_ckpt.store import CheckpointStore
from ms_ckpt.tensor import LazyTensor, RawTensor

__all__ = [
    "AsyncSaver",
    "Block",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointFolder",
    "CheckpointStore",
    "CkptError",
    "ConfigError",
    "InvalidCheckpointError",
    "Layout",
    "LazyTensor",
    "LoadRules",
    "MismatchError",
    "PartStore",
    "RankStore",
    "RawTensor",
    "SaveError",
    "StepExistsError",
    "ValuesError",
    "__version__",
    "from_mapping",
    "layout_of_plan",
    "merge_parts",
    "open_folder",
    "reshard",
    "split_layout",
]
