"""Filling an empty folder with a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ms_ckpt.block import Block, join_tensors, rank_file, write_blocks
from ms_ckpt.commit import write_documents
from ms_ckpt.errors import InvalidCheckpointError, ValuesError
from ms_ckpt.index import Index, StoredFile, StoredTensor
from ms_ckpt.tiling import check_tiling

Part = tuple[StoredFile, Mapping[str, StoredTensor]]
"""A rank's file, and the chunks in it."""

_MOST_NAMED = 8  # chunks in an error


def write_folder(folder: Path, step: int, ranks: Sequence[Mapping[str, Sequence[Block]]], state: bytes) -> None:
    """Writes a whole checkpoint: one tensor file for each of `ranks`, every file and the folder fsynced, COMMIT last.

    Raises:
        ValuesError: a tensor cannot be stored exactly, or the blocks do not tile it.
        OSError: something could not be written.
    """
    commit_parts(folder, step, [write_blocks(folder, rank, blocks) for rank, blocks in enumerate(ranks)], state)


def commit_parts(folder: Path, step: int, parts: Sequence[Part], state: bytes) -> None:
    """Makes a checkpoint of the ranks' durable files, in order of ranks: checks the tiling, writes the documents.

    Raises ValuesError, naming the tensor and who wrote what of it, if it has gaps or was written twice.
    """
    tensors = join_tensors((rank_file(rank), entries) for rank, (_, entries) in enumerate(parts))
    for name, tensor in tensors.items():
        try:
            check_tiling(tensor.shape, tensor.chunks, f"tensor {name}")
        except InvalidCheckpointError as error:
            raise ValuesError(f"{error} {_spell_chunks(tensor)}") from error
    files = {rank_file(rank): file for rank, (file, _) in enumerate(parts)}
    write_documents(folder, Index(step=step, files=files, tensors=tensors), state)


def _spell_chunks(tensor: StoredTensor) -> str:
    named = [f"{chunk.file} has {list(chunk.shape)} at {list(chunk.offset)}" for chunk in tensor.chunks[:_MOST_NAMED]]
    rest = len(tensor.chunks) - len(named)
    return (
        f"of {list(tensor.shape)}: {', '.join(named)}{f' and {rest} more' if rest else ''}; "
        "one rank writes each element, a rank with a copy of its block gives it replica=1, 2, ..."
    )
