"""Filling an empty folder with a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ms_ckpt.block import Block, join_tensors, rank_file, write_blocks
from ms_ckpt.commit import write_documents
from ms_ckpt.index import Index
from ms_ckpt.tiling import check_tiling


def write_folder(folder: Path, step: int, ranks: Sequence[Mapping[str, Sequence[Block]]], state: bytes) -> None:
    """Writes a whole checkpoint: one tensor file for each of `ranks`, every file and the folder fsynced, COMMIT last.

    Raises:
        ValuesError: a tensor cannot be stored exactly, or the blocks do not tile it.
        OSError: something could not be written.
    """
    written = [write_blocks(folder, rank, blocks) for rank, blocks in enumerate(ranks)]
    tensors = join_tensors((rank_file(rank), entries) for rank, (_, entries) in enumerate(written))
    for name, tensor in tensors.items():
        check_tiling(tensor.shape, tensor.chunks, f"tensor {name}")
    files = {rank_file(rank): file for rank, (file, _) in enumerate(written)}
    write_documents(folder, Index(step=step, files=files, tensors=tensors), state)
