"""Rows shown to a person: decoded, with document boundaries and padding marked."""

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.batches import SpecialIds, content_lengths
from ms_dataprep.tokenizer import Tokenizer


def render_row(row: NDArray[np.int32], special: SpecialIds, tokenizer: Tokenizer) -> str:
    """Text of one row (int32 [row_length]): a line before each document says how many ids it has and its end."""
    length = int(content_lengths(row[None], special)[0])
    lines = []
    start = 0
    while start < length:
        ends = np.flatnonzero(row[start:length] == special.eod)
        end = start + int(ends[0]) + 1 if len(ends) else length
        last = "ends" if len(ends) else "goes on in another row"
        lines.append(f"--- ids {start} to {end - 1}, {last}")
        lines.append(tokenizer.decode(row[start : end - 1 if len(ends) else end].tolist()))
        start = end
    if length < len(row):
        lines.append(f"--- padding, {len(row) - length} ids")
    return "\n".join(lines)
