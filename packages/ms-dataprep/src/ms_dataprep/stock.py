"""MindRecord files that another program wrote, without a manifest: what can be known of them stands in their headers.

Nothing tells here whether a file was changed or cut at a row's end, which tokenizer made the ids, or where a document
begins other than by its end id: those checks need the manifest that `ms-dataprep build` writes.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ms_dataprep.batches import SpecialIds
from ms_dataprep.errors import ConfigError, DatasetError
from ms_dataprep.manifest import FILE, Manifest, Shard
from ms_dataprep.mindrecord import INDEX_ENDING, count_rows, read_fields


@dataclass(frozen=True, kw_only=True)
class StockFormat:
    """What a manifest would say of a folder of stock MindRecord files."""

    vocab_size: int
    """Ids lie below it; a row with another is refused when it is read."""
    eod_id: int
    """The id that ends a document; where none ends in a row, the row is one document."""
    pad_id: int | None = None
    """The id of padding at rows' ends; None: EOD pads."""
    bos_id: int | None = None
    """The id that begins a document, if there is one."""
    column: str = "input_ids"
    """The int32 column of ids, the only array column of the files."""

    def __post_init__(self) -> None:
        """Raises ConfigError for ids that are none."""
        for name in ("eod_id", "pad_id", "bos_id"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < self.vocab_size:
                raise ConfigError(f"stock.{name}: expected 0 to {self.vocab_size - 1}, found {number}")


def describe_stock(folder: Path, form: StockFormat) -> Manifest:
    """A manifest in memory for all MindRecord files of a folder, in the order of their names, numbers by value.

    Raises:
        DatasetError: the folder holds no such file, or a manifest; a file has other columns, another type, or rows of
            another length than the first.
    """
    if (folder / FILE).exists():
        raise DatasetError(f"{folder}: has a {FILE}; load it without `stock`")
    files = sorted(folder.glob(f"*{INDEX_ENDING}"), key=lambda path: _numbered(path.name))
    if not files:
        raise DatasetError(f"{folder}: no MindRecord file with its {INDEX_ENDING} in it")
    shards, lengths = [], set()
    for index in files:
        path = index.with_name(index.name.removesuffix(INDEX_ENDING))
        if not path.is_file():
            raise DatasetError(f"{path} is missing, its {INDEX_ENDING} is there")
        lengths.add(_row_length(path, form.column))
        if len(lengths) > 1:
            raise DatasetError(f"{path}: rows of {_row_length(path, form.column)} ids, other files have another length")
        shards.append(Shard(file=path.name, rows=count_rows(path), bytes=path.stat().st_size, sha256=""))
    row_length, rows = lengths.pop(), sum(shard.rows for shard in shards)
    return Manifest(
        created_by="another program", mindspore_version="", seq_length=row_length - 1, row_length=row_length,
        layout="int32", column=form.column, rows=rows, tokens=rows * row_length, documents=0,
        vocab_size=form.vocab_size, special_ids=SpecialIds(eod=form.eod_id, pad=form.pad_id, bos=form.bos_id),
        tokenizer={"file": "", "kind": "", "fingerprint": ""}, packing={}, options={}, sources=[], dropped={},
        shards=shards,
    )  # fmt: skip


def _row_length(path: Path, column: str) -> int:
    fields = read_fields(path)
    arrays = {name: kind for name, kind in fields.items() if kind.get("shape") or kind["type"] == "bytes"}
    if set(arrays) != {column}:
        raise DatasetError(f"{path}: array columns {', '.join(arrays) or 'none'}, expected {column} alone")
    kind, shape = arrays[column]["type"], arrays[column].get("shape")
    if kind != "int32" or shape is None or len(shape) != 1 or shape[0] < 2:
        raise DatasetError(f"{path}: {column} is {kind} {shape or ''}, expected int32 [seq_length + 1]")
    return int(shape[0])


def _numbered(name: str) -> list[tuple[int, str]]:
    """A sorting key in which shard10 comes after shard9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
