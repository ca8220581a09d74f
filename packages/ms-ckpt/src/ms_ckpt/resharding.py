"""A checkpoint written anew for another layout of ranks, one block in memory at a time."""

from pathlib import Path

from ms_ckpt.block import Block
from ms_ckpt.folder import CheckpointFolder
from ms_ckpt.layout import Layout
from ms_ckpt.store import CheckpointStore
from ms_ckpt.tensor import LazyTensor


def reshard(source: CheckpointFolder, store: CheckpointStore, layout: Layout, *, replace: bool = False) -> Path:
    """Saves the whole checkpoint `source` into `store`, one file for each rank of the layout; returns the folder.

    Every byte is verified as it is read. Tensors and values stay what they are; copies are written once.

    Raises:
        ValuesError: the layout does not cover a tensor.
        InvalidCheckpointError: `source` is damaged; nothing was published.
        SaveError: as `CheckpointStore.save`.
    """
    ranks: list[dict[str, list[Block]]] = []
    for rank in range(layout.world_size):
        blocks = {}
        for name, tensor in source.index.tensors.items():
            ranges = layout.ranges(name, tensor.shape, rank)
            if ranges is not None and layout.replica(name, tensor.shape, rank) == 0:
                data = _lazy(source, name, tuple(slice(*each) for each in ranges))
                blocks[name] = [Block(data=data, offset=tuple(low for low, _ in ranges), shape=tensor.shape)]
        ranks.append(blocks)
    return store.save_ranks(source.step, ranks, source.values, replace=replace)


def _lazy(source: CheckpointFolder, name: str, cut: tuple[slice, ...]) -> LazyTensor:
    shape = tuple(each.stop - each.start for each in cut)
    dtype = source.index.tensors[name].dtype
    return LazyTensor(dtype=dtype, shape=shape, read=lambda: source.read_slice(name, cut))
