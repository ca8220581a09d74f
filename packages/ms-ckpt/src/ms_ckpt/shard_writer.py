"""Writes one safetensors file, with checksums in the same pass as the bytes."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ms_ckpt.blockfile import new_block_file
from ms_ckpt.checksum import checksum, spell_checksum
from ms_ckpt.index import StoredFile
from ms_ckpt.pieces import metadata_key, piece_size, spell_pieces
from ms_ckpt.tensor import NUMPY_DTYPES, Source, as_bytes, form_of, num_bytes, stored_form

_DTYPE_ORDER = {name: place for place, name in enumerate(NUMPY_DTYPES)}
_STEP = 1 << 20  # checksum and copy 1 MB at a time: the second pass finds the bytes still in the cache


def write_shard(
    path: Path,
    tensors: Mapping[str, Source],
    *,
    metadata: Mapping[str, str] | None = None,
    has_pieces: bool = True,
) -> tuple[StoredFile, dict[str, str]]:
    """Writes tensors to a new, fsynced file, lazy ones read one at a time; returns its entry and their checksums.

    The layout is that of the safetensors library: wide dtypes first, then by name; the header is padded with spaces
    to a multiple of eight, so every tensor is aligned.

    Args:
        path: The file.
        tensors: What to write, by key.
        metadata: More entries for the header's `__metadata__`.
        has_pieces: Put the running checksums of large tensors into the header (see pieces.py).

    Raises:
        ValuesError: a tensor cannot be stored; nothing was written.
        OSError: the file exists or cannot be written in full.
    """
    forms = {name: form_of(name, tensor) for name, tensor in tensors.items()}
    order = sorted(forms, key=lambda name: (_DTYPE_ORDER[forms[name][0]], name))
    notes = dict(metadata or {})
    entries, pieces, end = {}, {}, 0
    for name in order:
        dtype, shape = forms[name]
        size = num_bytes(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
        piece = piece_size(size) if has_pieces else None
        if piece is not None:
            pieces[name] = piece
            notes[metadata_key(name)] = spell_pieces(piece, [0] * -(-size // piece))
    header_bytes = len(_spell_header(entries, notes))

    checksums = {}
    with new_block_file(path, header_bytes + end, header_bytes) as file:
        for name in order:
            data, running, after = np.frombuffer(as_bytes(stored_form(name, tensors[name])[1]), np.uint8), 0, []
            piece = pieces.get(name)
            step = min(piece, _STEP) if piece is not None else _STEP
            for start in range(0, len(data), step):
                part = data[start : start + step]
                running = checksum(part.data, running)
                file.append(part)
                if piece is not None and ((start + len(part)) % piece == 0 or start + step >= len(data)):
                    after.append(running)
            checksums[name] = spell_checksum(running)
            if piece is not None:
                notes[metadata_key(name)] = spell_pieces(piece, after)
        header = _spell_header(entries, notes)
        file.finish(header)
    about = StoredFile(
        bytes=header_bytes + end, header_bytes=header_bytes, header_checksum=spell_checksum(checksum(header))
    )
    return about, checksums


def _spell_header(entries: Mapping[str, object], notes: Mapping[str, str]) -> bytes:
    document = {"__metadata__": notes, **entries} if notes else entries
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
