"""The first stage of a build, a task at a time: read, clean, judge, and put what stays into a spool."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from ms_dataprep.cleaning import Cleaner, choose_steps
from ms_dataprep.config import DataConfig
from ms_dataprep.errors import SourceError
from ms_dataprep.filters import Drop, find_drop
from ms_dataprep.heldout import HeldoutNgrams
from ms_dataprep.language import identify_language
from ms_dataprep.readers import Rejected, read_documents
from ms_dataprep.shingles import MinHasher, choose_bands, hash_bands, hash_shingles
from ms_dataprep.sources import Source, open_stream
from ms_dataprep.spool import SpoolWriter
from ms_dataprep.tasks import Task
from ms_dataprep.units import split_units
from ms_dataprep.words import TextParts

REJECTED, DROPPED = "rejected.jsonl", "dropped.jsonl"
Advance = Callable[[int, int], None]
_REPORT_BYTES = 1 << 20
_DTYPES: dict[str, np.dtype[Any]] = {
    "high": np.dtype(np.uint64), "low": np.dtype(np.uint64), "bands": np.dtype(np.uint64),
    "signatures": np.dtype(np.uint32), "units": np.dtype(np.uint64), "copies": np.dtype(np.uint8),
}  # fmt: skip
_EXCERPT = 120


@dataclass(kw_only=True)
class ReadCounts:
    """What a task found; plain values, so that it can be kept as JSON."""

    documents: dict[str, int] = field(default_factory=dict)
    """Documents read, by source number."""
    lines: dict[str, int] = field(default_factory=dict)
    """Lines or records seen, by source number; line numbers of later parts begin after them."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Documents not kept, by reason."""
    changed: dict[str, int] = field(default_factory=dict)
    """Documents altered, by cleaning step."""
    languages: dict[str, int] = field(default_factory=dict)
    """Documents that stay, by language, where languages are told apart."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """The first documents kept and dropped: `text`, and `rule` of a dropped one."""


class DocumentReader:
    """Reads tasks; one a worker."""

    _SAMPLES = 3

    def __init__(self, config: DataConfig, sources: Sequence[Source], heldout: HeldoutNgrams | None) -> None:
        """Raises DataprepError for a step whose package is missing."""
        self._config = config
        self._sources = sources
        self._heldout = heldout
        self._steps = choose_steps(config)
        self._hasher = MinHasher()
        self._bands = choose_bands(config.near_threshold)
        self._threshold = round(config.validation_share * 2**64)

    def read(self, task: Task, folder: Path, advance: Advance) -> ReadCounts:
        """Reads a task's documents into a spool at `folder`, which must not exist.

        Beside the spool's arrays stand `rejected.jsonl` and, where asked for, `dropped.jsonl`, with source numbers and
        lines that count from the task's first in each source.

        Args:
            task: what to read.
            folder: the spool to make.
            advance: told bytes and documents read since it was last told.

        Raises:
            SourceError: a bad line, with on_error `fail`.
        """
        counts, cleaner = ReadCounts(), Cleaner(self._steps)
        dropped: Counter[str] = Counter()
        with (
            SpoolWriter(folder) as spool,
            (folder / REJECTED).open("w", encoding="utf-8") as rejected,
            (folder / DROPPED).open("w", encoding="utf-8") as listed,
        ):
            for part in task.parts:
                source = self._sources[part.source]
                num_documents = last_line = told_bytes = told_documents = 0
                copies = self._choose_weight(source)
                with open_stream(source, part.begin) as (stream, raw):
                    for item in read_documents(source, stream, self._config.text_key, num_bytes=part.num_bytes):
                        last_line = item.line
                        if isinstance(item, Rejected):
                            dropped[item.kind] += 1
                            if item.kind == "bad_line":
                                self._reject(source, item, part.begin)
                                _write_line(rejected, {"source": part.source, **asdict(item)})
                            continue
                        num_documents += 1
                        text = cleaner.clean(item.text)
                        drop = self._judge(text, counts) or self._keep(spool, text, part.source, item.line, copies)
                        if drop is not None:
                            dropped[drop.rule] += 1
                            if self._config.lists_dropped:
                                entry = {"source": part.source, "line": item.line, **asdict(drop)}
                                _write_line(listed, {**entry, "text": text[:_EXCERPT]})
                        self._sample(counts, text, drop)
                        if raw.bytes_read - told_bytes >= _REPORT_BYTES:
                            advance(raw.bytes_read - told_bytes, num_documents - told_documents)
                            told_bytes, told_documents = raw.bytes_read, num_documents
                part_bytes = source.bytes if part.num_bytes is None else part.num_bytes
                advance(part_bytes - told_bytes, num_documents - told_documents)
                key = str(part.source)
                counts.documents[key] = counts.documents.get(key, 0) + num_documents
                counts.lines[key] = counts.lines.get(key, 0) + last_line
            spool.finish(_DTYPES)
        counts.dropped, counts.changed = dict(dropped), dict(cleaner.changed)
        return counts

    def _reject(self, source: Source, item: Rejected, begin: int) -> None:
        if self._config.on_error == "fail":
            line = item.line if not begin else _count_lines(source, begin) + item.line
            raise SourceError(f"{source.path}:{line}: {item.reason}")

    def _judge(self, text: str, counts: ReadCounts) -> Drop | None:
        config = self._config
        if not text.strip():
            return Drop("empty", 0, 1)
        if len(text) < config.min_characters:
            return Drop("too_short", len(text), config.min_characters)
        if config.quality and (drop := find_drop(TextParts(text), config.quality)) is not None:
            return drop
        if config.languages:
            language, probability = identify_language(text)
            if language not in config.languages or probability < config.language_threshold:
                return Drop(f"language_{language}", round(probability, 4), config.language_threshold)
            counts.languages[language] = counts.languages.get(language, 0) + 1
        if self._heldout is not None and (shared := self._heldout.count_shared(text)):
            return Drop("heldout", shared, 0)
        return None

    def _keep(self, spool: SpoolWriter, text: str, source: int, line: int, weight: float) -> Drop | None:
        """Spools a document unless it belongs to the other part or its source's weight leaves it out."""
        config = self._config
        digest = hashlib.blake2b(text.encode("utf-8"), digest_size=24).digest()
        high, low, split = (int.from_bytes(digest[place : place + 8], "little") for place in (0, 8, 16))
        if config.part != "all" and (split < self._threshold) != (config.part == "validation"):
            return Drop("other_part", round(split / 2**64, 6), config.validation_share)
        copies = int(weight) + (high / 2**64 < weight % 1)
        if not copies:
            return Drop("source_weight", round(high / 2**64, 6), weight)
        columns: dict[str, Any] = {"sources": source, "lines": line, "high": high, "low": low, "copies": copies}
        place = len(spool)
        spool.add(text, **columns)
        if config.dedup == "near":
            shingles = hash_shingles(TextParts(text).words)
            if len(shingles):
                signature = self._hasher.sign(shingles)
                spool.extend("signed", [place])
                spool.extend("signatures", [signature])
                spool.extend("bands", [hash_bands(signature, *self._bands)])
        if config.dedup_lines != "none":
            hashes = [
                _hash_unit(unit) if len(unit.strip()) >= config.min_line_characters else 0
                for unit in split_units(text, config.dedup_lines)
            ]
            spool.extend("units", hashes)
            spool.extend("unit_owners", [place] * len(hashes))
        return None

    def _choose_weight(self, source: Source) -> float:
        for pattern, weight in (self._config.source_weights or {}).items():
            if fnmatchcase(source.path, pattern):
                return float(weight)
        return 1.0

    def _sample(self, counts: ReadCounts, text: str, drop: Drop | None) -> None:
        rule = drop.rule if drop else None
        if sum(sample.get("rule") == rule for sample in counts.samples) < self._SAMPLES and text.strip():
            sample: dict[str, Any] = {"text": text[:400]}
            counts.samples.append(sample | asdict(drop) if drop else sample)


def _hash_unit(unit: str) -> int:
    """64 bits of a line or paragraph, never 0: that marks units which are too short to count as repeated."""
    return int.from_bytes(hashlib.blake2b(unit.strip().encode("utf-8"), digest_size=8).digest(), "little") or 1


def _count_lines(source: Source, end: int) -> int:
    with Path(source.path).open("rb") as file:
        return file.read(end).count(b"\n")


def _write_line(file: Any, entry: dict[str, Any]) -> None:
    file.write(json.dumps(entry, ensure_ascii=False) + "\n")
