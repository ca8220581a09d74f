"""The third stage of a build, a shard at a time: tokenize, pack and write the documents that stay."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ms_dataprep.batches import SpecialIds
from ms_dataprep.config import DataConfig
from ms_dataprep.deduplication import KEPT
from ms_dataprep.manifest import Shard
from ms_dataprep.mindrecord import FileSizes
from ms_dataprep.packing import Packer, PackingCounts
from ms_dataprep.shards import write_shard
from ms_dataprep.spool import Spool
from ms_dataprep.tokenizer import Tokenizer
from ms_dataprep.units import join_units, split_units

_BATCH_CHARACTERS = 1 << 21
_BATCH_DOCUMENTS = 4096


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """The documents of one shard."""

    number: int
    """Of the shard."""
    spool: str
    """Folder of the spool that holds them."""
    begin: int
    """The first document's place in the spool."""
    end: int
    """The place after the last."""
    num_bytes: int
    """Of their text."""


@dataclass(kw_only=True)
class ShardCounts:
    """What became of a shard's documents; plain values, so that it can be kept as JSON."""

    packing: dict[str, int]
    """The counts of `PackingCounts`."""
    shard: dict[str, str | int] | None = None
    """The shard, or None if no document was left for it."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Documents that gave no row, by reason."""
    kept: dict[str, int] = field(default_factory=dict)
    """Documents written, by source number."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Their ids, by source number."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Documents written, by the power of two that bounds their ids from below."""
    characters: int = 0
    """Characters written."""


class ShardMaker:
    """Makes shards; one a worker."""

    def __init__(
        self,
        config: DataConfig,
        folder: Path,
        *,
        tokenizer: Tokenizer,
        special: SpecialIds,
        sizes: FileSizes,
    ) -> None:
        """Shards go to `folder`."""
        self._config = config
        self._folder = folder
        self._special = special
        self._sizes = sizes
        self._tokenizer = tokenizer
        self._structural = [number for number in asdict(special).values() if number is not None]

    def make(self, plan: ShardPlan, advance: Callable[[int, int], None]) -> ShardCounts:
        """Writes one shard. `advance` is told the bytes of text and the documents since it was last told."""
        packer = Packer(
            self._config.packing,
            self._config.row_length,
            filler=self._special.eod if self._special.pad is None else self._special.pad,
        )
        counts = ShardCounts(packing={})
        dropped, kept, tokens, lengths = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        head = [] if self._special.bos is None else [self._special.bos]
        for batch in self._batches(plan, dropped):
            texts = [text for _, text, _ in batch]
            for (source, text, copies), ids in zip(batch, self._tokenizer.encode_batch(texts), strict=True):
                if not len(ids):
                    dropped["no_token"] += 1
                elif any((ids == number).any() for number in self._structural):
                    dropped["special_id_in_text"] += 1
                else:
                    document = np.concatenate((head, ids, [self._special.eod]), dtype=np.int32, casting="unsafe")
                    for _ in range(copies):
                        packer.add(document)
                    kept[source] += copies
                    tokens[source] += copies * len(document)
                    lengths[str(1 << (len(document).bit_length() - 1))] += copies
                    counts.characters += copies * len(text)
            advance(sum(len(text) if text.isascii() else len(text.encode()) for text in texts), len(texts))
        rows = packer.finish()
        counts.packing = count_packing(packer.counts)
        counts.dropped, counts.kept, counts.tokens, counts.lengths = (
            dict(dropped),
            dict(kept),
            dict(tokens),
            dict(lengths),
        )
        if len(rows):
            shard = write_shard(self._folder, plan.number, rows, layout=self._config.layout, sizes=self._sizes)
            counts.shard = asdict(shard)
        return counts

    def _batches(self, plan: ShardPlan, dropped: Counter[str]) -> Iterator[list[tuple[str, str, int]]]:
        """Kept documents as (source number, text, copies), a few MB at a time."""
        spool = Spool(Path(plan.spool))
        fates, copies = spool.column("fates", np.uint8), spool.column("copies", np.uint8)
        sources = spool.column("sources", np.int64)
        units = self._kept_units(spool, plan) if self._config.dedup_lines != "none" else None
        batch: list[tuple[str, str, int]] = []
        characters = 0
        for place, text in enumerate(spool.texts(plan.begin, plan.end), plan.begin):
            if fates[place] != KEPT:
                continue
            if units is not None:
                text = join_units(split_units(text, self._config.dedup_lines), units[place])
                if len(text) < max(1, self._config.min_characters):
                    dropped["repeated_lines"] += 1
                    continue
            batch.append((str(sources[place]), text, int(copies[place])))
            characters += len(text)
            if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
                yield batch
                batch, characters = [], 0
        if batch:
            yield batch

    def _kept_units(self, spool: Spool, plan: ShardPlan) -> dict[int, list[bool]]:
        owners = spool.column("unit_owners", np.int64)
        begin, end = np.searchsorted(owners, [plan.begin, plan.end])
        is_kept = ~spool.column("repeated", np.bool_)[begin:end]
        edges = np.searchsorted(owners[begin:end], np.arange(plan.begin, plan.end + 1)).tolist()
        return {
            plan.begin + place: is_kept[edges[place] : edges[place + 1]].tolist()
            for place in range(plan.end - plan.begin)
        }


def plan_shards(folders: Sequence[Path], spools: Sequence[Spool], shard_bytes: int) -> list[ShardPlan]:
    """Cuts spools into shards of about `shard_bytes` of text; spools and ranges without a kept document have none."""
    plans: list[ShardPlan] = []
    for folder, spool in zip(folders, spools, strict=True):
        ends, fates = np.array(spool.ends), spool.column("fates", np.uint8)
        if not len(ends):
            continue
        count = max(1, -(-int(ends[-1]) // shard_bytes))
        edges = np.unique([0, *np.searchsorted(ends, ends[-1] * np.arange(1, count) // count), len(ends)])
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if (fates[begin:end] == KEPT).any():
                size = int(ends[end - 1] - (ends[begin - 1] if begin else 0))
                plans.append(ShardPlan(number=len(plans), spool=str(folder), begin=begin, end=end, num_bytes=size))
    return plans


def count_packing(counts: PackingCounts) -> dict[str, int]:
    """The counts as plain values."""
    return {name: value for name, value in asdict(counts).items() if name != "row_length"}


def read_shard(counts: ShardCounts) -> Shard | None:
    """The shard that was written, if one was."""
    return None if counts.shard is None else Shard(**counts.shard)  # type: ignore[arg-type]  # what asdict made of one


def most_rows(num_bytes: int, num_documents: int, config: DataConfig) -> int:
    """Rows that text can give at most: no id stands for less than a byte, best fit leaves no two rows half empty."""
    if config.packing == "one_per_row":
        return num_documents
    return 2 * (num_bytes + 2 * num_documents) // config.seq_length + 2
