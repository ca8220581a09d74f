"""Verification of a finished dataset: hashes, counts, ids, and the rule that every document has one end."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.batches import content_lengths
from ms_dataprep.errors import DatasetError
from ms_dataprep.manifest import Manifest, read_manifest
from ms_dataprep.rows import Rows
from ms_dataprep.shards import hash_file

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found in the rows, and agrees with the manifest."""

    rows: int
    """Rows read."""
    tokens: int
    """Ids of documents, each counted once."""
    padding_tokens: int
    """Ids that only fill rows."""
    document_ends: int
    """EODs that end a document."""
    largest_id: int
    """The largest id."""


def verify(folder: str | Path) -> Verification:
    """Reads a whole dataset and compares it with its manifest.

    Raises:
        DatasetError: a shard's hash, a count, an id or a document's end is wrong; names the shard or the row.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    for shard in manifest.shards:
        if (digest := hash_file(folder / shard.file)) != shard.sha256:
            raise DatasetError(f"{folder / shard.file}: damaged, its hash is {digest}, expected {shard.sha256}")
    rows = Rows(folder, manifest)
    ends = padding = largest = 0
    for start in range(0, manifest.rows, _ROWS_AT_ONCE):
        numbers = np.arange(start, min(start + _ROWS_AT_ONCE, manifest.rows))
        block = rows.read(numbers)
        lengths = content_lengths(block, manifest.special_ids)
        ends += _count_ends(folder, manifest, block, lengths, start)
        padding += int((manifest.row_length - lengths).sum())
        largest = max(largest, int(block.max()))
    packing = manifest.packing
    if padding != packing["padding_tokens"]:
        raise DatasetError(f"{folder}: {padding} padding ids in its rows, expected {packing['padding_tokens']}")
    if packing["method"] != "one_per_row" and ends != manifest.documents:
        raise DatasetError(f"{folder}: {ends} document ends in its rows, expected {manifest.documents}")
    if packing["method"] == "one_per_row" and manifest.documents != manifest.rows:
        raise DatasetError(f"{folder}: {manifest.rows} rows for {manifest.documents} documents of one row each")
    tokens = manifest.rows * manifest.row_length - padding - packing["repeated_tokens"]
    return Verification(
        rows=manifest.rows, tokens=tokens, padding_tokens=padding, document_ends=ends, largest_id=largest
    )


def _count_ends(
    folder: Path, manifest: Manifest, block: NDArray[np.int32], lengths: NDArray[np.int64], first_row: int
) -> int:
    """Document ends in a block of rows, checked: none twice in a row, one before padding, BOS after each."""
    special, method = manifest.special_ids, manifest.packing["method"]
    is_content = np.arange(block.shape[1]) < lengths[:, None]
    is_end = (block == special.eod) & is_content
    last = block[np.arange(len(block)), lengths - 1]
    is_padded = lengths < block.shape[1]
    after_end = is_end[:, :-1] & is_content[:, 1:]
    rules = [
        (lengths == 0, "is all padding"),
        ((is_end[:, 1:] & is_end[:, :-1]).any(axis=1), "holds an empty document"),
        (is_padded & (last != special.eod), "is padded after a document without an end"),
    ]
    if special.bos is not None:
        rules.append(((after_end & (block[:, 1:] != special.bos)).any(axis=1), "has a document without its begin id"))
    if method == "one_per_row":
        rules.append((after_end.any(axis=1), "holds more than one document"))
    for is_broken, fault in rules:
        if is_broken.any():
            raise DatasetError(f"{folder}: row {first_row + int(is_broken.argmax())} {fault}; build it again")
    if method == "concat":  # a row's first id repeats the one before it, but for a shard's first row
        begins = np.cumsum([0] + [shard.rows for shard in manifest.shards])
        is_end[~np.isin(np.arange(first_row, first_row + len(block)), begins), 0] = False
    return int(is_end.sum())
