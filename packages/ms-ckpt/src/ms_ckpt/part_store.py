"""Ranks without a shared disk: each keeps its part of every checkpoint in a folder of its own, whole in itself.

A part is written, verified, kept and loaded like a checkpoint; `merge_parts` makes one checkpoint of all parts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ms_ckpt.agreement import common_step
from ms_ckpt.block import Block, Content, blocks_of, rank_file, write_blocks
from ms_ckpt.checkpoint import Checkpoint
from ms_ckpt.commit import state_bytes, write_documents
from ms_ckpt.config import CheckpointConfig
from ms_ckpt.errors import MismatchError, ValuesError
from ms_ckpt.folder import CheckpointFolder, folder_name, open_folder
from ms_ckpt.index import Chunk, Index
from ms_ckpt.loading import Slices
from ms_ckpt.rules import Expected, LoadRules
from ms_ckpt.store import CheckpointStore
from ms_ckpt.tensor import LazyTensor


class PartStore(CheckpointStore):
    """A store of one rank's parts, under `root/rank-00001-of-00004/`; copies of blocks are kept too."""

    def __init__(self, root: Path | str, config: CheckpointConfig | None = None, *, rank: int, world_size: int) -> None:
        """Several ranks of a node may share `root`."""
        if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
            raise ValuesError(f"rank {rank!r} of {world_size!r}: expected 0 <= rank < world_size")
        super().__init__(Path(root) / f"rank-{rank:05d}-of-{world_size:05d}", config)
        self._part = (rank, world_size)
        self._rank = rank

    def save(
        self, step: int, tensors: Mapping[str, Content], values: Mapping[str, Any], *, replace: bool = False
    ) -> Path:
        """Saves this rank's blocks; of each tensor they must fill one block. Errors as `CheckpointStore.save`.

        `values` should be the same on all ranks: a merge refuses parts whose values differ.
        """
        state = state_bytes(step, values)
        blocks = blocks_of(tensors)
        with self.publication(step, replace=replace) as staged:
            file, written = write_blocks(staged, self._rank, blocks, has_replicas=True)
            rank, world_size = self._part
            index = Index(
                step=step, files={rank_file(self._rank): file}, tensors=written, rank=rank, world_size=world_size
            )
            Index.from_bytes(index.to_bytes())  # refuses blocks that fill no block together
            write_documents(staged, index, state)
        return self.root / folder_name(step)

    def load_agreed(
        self,
        agree: Callable[[int], int],
        *,
        expected: Expected | None = None,
        rules: LoadRules | None = None,
        slices: Slices | None = None,
    ) -> Checkpoint | None:
        """Loads this rank's part of the newest step that is valid on all ranks; see `RankStore.load` for `agree`."""
        step = common_step(self, agree, rules, slices)
        return None if step is None else self.load(step, expected=expected, rules=rules, slices=slices)


def merge_parts(
    store: CheckpointStore, parts: Sequence[Path], *, values_from: int | None = None, replace: bool = False
) -> Path:
    """Makes one checkpoint in `store` of all ranks' part folders (`.../step-00001000`), every byte verified on the way.

    Copies of a block are compared and stored once. `values_from` names the rank whose values count if they differ.

    Raises:
        MismatchError: a rank is missing or given twice, or the parts are of different steps, jobs, values or copies;
            everything found stands in one error.
        InvalidCheckpointError: a part is damaged; nothing was published.
        SaveError: as `CheckpointStore.save`.
    """
    with ExitStack() as stack:
        folders = [stack.enter_context(open_folder(path)) for path in parts]
        by_rank = _in_order(folders, values_from)
        ranks = _blocks_once(by_rank)
        values = by_rank[values_from or 0].values
        return store.save_ranks(by_rank[0].step, ranks, values, replace=replace)


def _in_order(folders: Sequence[CheckpointFolder], values_from: int | None) -> list[CheckpointFolder]:
    problems = [f"{folder.path}: a whole checkpoint, not a part" for folder in folders if folder.index.rank is None]
    parts = [folder for folder in folders if folder.index.rank is not None]
    by_rank: dict[int, CheckpointFolder] = {}
    for folder in parts:
        first = by_rank.setdefault(folder.index.rank or 0, folder)
        if first is not folder:
            problems.append(f"{folder.path}: rank {folder.index.rank} again, as in {first.path}")
    jobs = {(folder.step, folder.index.world_size) for folder in parts}
    if len(jobs) > 1:
        problems += [f"{f.path}: step {f.step} of a job of {f.index.world_size} ranks" for f in parts]
    elif parts and (missing := sorted(set(range(parts[0].index.world_size or 0)) - by_rank.keys())):
        problems.append(f"no part of rank {', '.join(map(str, missing))} (of {parts[0].index.world_size})")
    if values_from is not None and values_from not in by_rank:
        problems.append(f"values are to come from rank {values_from}, which has no part here")
    chosen = by_rank.get(values_from or 0)
    if values_from is None and chosen is not None:
        differing = [rank for rank, folder in sorted(by_rank.items()) if repr(folder.values) != repr(chosen.values)]
        if differing:
            problems.append(
                f"values of rank {', '.join(map(str, differing))} differ from those of rank 0: are these parts of "
                "different runs? If not, say whose values count (--values-from)"
            )
    if problems or not parts:
        raise MismatchError("\n  ".join(["these parts make no checkpoint:", *(problems or ["there are none"])]))
    return [by_rank[rank] for rank in sorted(by_rank)]


def _blocks_once(by_rank: Sequence[CheckpointFolder]) -> list[dict[str, list[Block]]]:
    """Each rank's chunks as blocks that are read when they are written; copies only from the lowest rank."""
    first: dict[tuple[str, tuple[int, ...], tuple[int, ...]], tuple[int, str]] = {}
    ranks: list[dict[str, list[Block]]] = []
    problems = []
    for rank, folder in enumerate(by_rank):
        blocks: dict[str, list[Block]] = {}
        for name, tensor in folder.index.tensors.items():
            for chunk in tensor.chunks:
                owner, checksum = first.setdefault((name, chunk.offset, chunk.shape), (rank, chunk.checksum))
                if checksum != chunk.checksum:
                    problems.append(
                        f"{name}: {list(chunk.shape)} at {list(chunk.offset)}: ranks {owner} and {rank} differ"
                    )
                if owner == rank:
                    block = Block(data=_lazy(folder, name, chunk), offset=chunk.offset, shape=tensor.shape)
                    blocks.setdefault(name, []).append(block)
        ranks.append(blocks)
    if problems:
        raise MismatchError("\n  ".join(["copies that should be equal are not:", *problems]))
    return ranks


def _lazy(folder: CheckpointFolder, name: str, chunk: Chunk) -> LazyTensor:
    cut = tuple(slice(at, at + size) for at, size in zip(chunk.offset, chunk.shape, strict=True))
    dtype = folder.index.tensors[name].dtype
    return LazyTensor(dtype=dtype, shape=chunk.shape, read=lambda: folder.read_slice(name, cut))
