"""The build: from input files to a finished dataset folder, in one pass and a bounded amount of memory."""

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import numpy as np

from ms_dataprep.__about__ import __version__
from ms_dataprep.batches import SpecialIds
from ms_dataprep.cleaning import NONE, STANDARD, Cleaner
from ms_dataprep.config import DataConfig
from ms_dataprep.errors import ConfigError, SourceError
from ms_dataprep.manifest import Manifest, write_manifest
from ms_dataprep.mindrecord import COLUMN
from ms_dataprep.packing import Packer
from ms_dataprep.progress import Progress
from ms_dataprep.publishing import publish_folder, refuse_used_folder
from ms_dataprep.readers import Rejected, read_documents
from ms_dataprep.report import Statistics, write_report
from ms_dataprep.selection import Selection
from ms_dataprep.shards import ShardWriter, sync
from ms_dataprep.sources import Source, SourceFile, find_sources
from ms_dataprep.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

REJECTED_FILE = "rejected.jsonl"
_BATCH_CHARACTERS = 1 << 21
_BATCH_DOCUMENTS = 4096


def build(
    inputs: Sequence[str | Path],
    output: str | Path,
    *,
    tokenizer: str | Path,
    config: DataConfig,
    overwrite: bool = False,
    progress: bool = True,
) -> Manifest:
    """Builds a dataset folder (contract `dataset`) from text.

    Args:
        inputs: `.txt` and `.jsonl` files, plain or `.gz`, folders of them (recursive), globs.
        output: the folder to make; it appears, or is replaced, only when it is complete.
        tokenizer: a tokenizer.json; it is copied into the dataset.
        config: everything else.
        overwrite: whether a dataset at `output` may be replaced.
        progress: whether to show documents, MB/s and the time left.

    Returns:
        The manifest that was written.

    Raises:
        DataprepError: an input, the tokenizer or an option cannot be used; nothing is left behind then.
    """
    output = Path(output).absolute()
    refuse_used_folder(output, overwrite=overwrite)
    sources = find_sources(inputs)
    loaded = load_tokenizer(tokenizer, eod_token=config.eod_token, eod_id=config.eod_id)
    if config.add_bos and loaded.bos_id is None:
        raise ConfigError(f"add_bos: {loaded.path} has no beginning-of-document token")
    with publish_folder(output, overwrite=overwrite) as folder:
        return _Build(folder, sources, loaded, config).run(inputs, progress=progress)


class _Build:
    """The state of one build: counts, the documents waiting to be tokenized, and the rows on their way to shards."""

    def __init__(self, folder: Path, sources: list[Source], tokenizer: Tokenizer, config: DataConfig) -> None:
        self._folder = folder
        self._sources = sources
        self._tokenizer = tokenizer
        self._config = config
        self._special = SpecialIds(
            eod=tokenizer.eod_id, pad=tokenizer.pad_id, bos=tokenizer.bos_id if config.add_bos else None
        )
        self._structural = [number for number in asdict(self._special).values() if number is not None]
        self._cleaner = Cleaner(STANDARD if config.cleaning == "standard" else NONE)
        self._selection = Selection(dedup=config.dedup, part=config.part, validation_share=config.validation_share)
        self._packer = Packer(
            config.packing,
            config.row_length,
            filler=tokenizer.eod_id if tokenizer.pad_id is None else tokenizer.pad_id,
            window_rows=config.rows_per_shard,
        )
        self._writer = ShardWriter(folder, layout=config.layout, rows_per_shard=config.rows_per_shard)
        self._statistics = Statistics()
        self._waiting: list[tuple[int, str]] = []  # (source number, cleaned text)
        self._waiting_characters = 0
        self._hashes: list[str] = []

    def run(self, inputs: Sequence[str | Path], *, progress: bool) -> Manifest:
        import mindspore  # here, so that an installation that cannot write fails before the work

        total = sum(source.bytes for source in self._sources)
        with (
            (self._folder / REJECTED_FILE).open("w", encoding="utf-8", errors="backslashreplace") as rejected,
            Progress("build", total, shown=progress) as bar,
        ):
            for number, source in enumerate(self._sources):
                self._statistics.begin_source(source.path)
                self._read(number, source, rejected, bar)
            self._encode()
        if not self._statistics.dropped["bad_line"]:
            (self._folder / REJECTED_FILE).unlink()
        self._writer.add(self._packer.finish())
        shards = self._writer.finish()
        if not shards:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self._statistics.dropped.items()) or "no text"
            first = f"; first: {self._statistics.first_rejected}" if self._statistics.first_rejected else ""
            raise SourceError(f"no document is left of {len(self._sources)} files ({reasons}){first}")
        return self._publish(inputs, mindspore.__version__)

    def _read(self, number: int, source: Source, rejected: TextIO, bar: Progress) -> None:
        config, statistics = self._config, self._statistics
        with SourceFile(source) as file:
            for item in read_documents(source, file, config.text_key):
                if isinstance(item, Rejected):
                    statistics.drop(item.kind)
                    if item.kind == "bad_line":
                        self._reject(source, item, rejected)
                else:
                    statistics.read(number)
                    text = self._cleaner.clean(item.text)
                    if reason := self._find_drop_reason(text):
                        statistics.drop(reason)
                    else:
                        self._waiting.append((number, text))
                        self._waiting_characters += len(text)
                        if self._waiting_characters >= _BATCH_CHARACTERS or len(self._waiting) >= _BATCH_DOCUMENTS:
                            self._encode()
                bar.advance_to(source.path, file.bytes_read, statistics.documents_read)
            self._hashes.append(file.sha256())

    def _reject(self, source: Source, item: Rejected, rejected: TextIO) -> None:
        place = f"{source.path}:{item.line}: {item.reason}"
        if self._config.on_error == "fail":
            raise SourceError(place)
        self._statistics.first_rejected = self._statistics.first_rejected or place
        line = {"file": source.path, "line": item.line, "reason": item.reason}
        rejected.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _find_drop_reason(self, text: str) -> str | None:
        if not text.strip():
            return "empty"
        if len(text) < self._config.min_characters:
            return "too_short"
        return self._selection.drop_reason(text)

    def _encode(self) -> None:
        waiting, self._waiting, self._waiting_characters = self._waiting, [], 0
        if not waiting:
            return
        head = [] if self._special.bos is None else [self._special.bos]
        for (number, text), ids in zip(
            waiting, self._tokenizer.encode_batch([text for _, text in waiting]), strict=True
        ):
            if not len(ids):
                self._statistics.drop("no_token")
            elif np.isin(ids, self._structural).any():
                self._statistics.drop("special_id_in_text")
            else:
                document = np.concatenate((head, ids, [self._special.eod]), dtype=np.int32, casting="unsafe")
                self._statistics.keep(number, len(document), len(text))
                rows = self._packer.add(document)
                if rows is not None:
                    self._writer.add(rows)

    def _publish(self, inputs: Sequence[str | Path], mindspore_version: str) -> Manifest:
        counts, config, tokenizer = self._packer.counts, self._config, self._tokenizer
        shutil.copyfile(tokenizer.path, self._folder / "tokenizer.json")
        sync(self._folder / "tokenizer.json")
        manifest = Manifest(
            created_by=f"ms-dataprep {__version__}",
            mindspore_version=mindspore_version,
            seq_length=config.seq_length,
            row_length=config.row_length,
            layout=config.layout,
            column=COLUMN,
            rows=counts.rows,
            tokens=counts.tokens,
            documents=counts.documents,
            vocab_size=tokenizer.vocab_size,
            special_ids=self._special,
            tokenizer={"file": "tokenizer.json", "kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint},
            packing={
                "method": config.packing,
                "padding_tokens": counts.padding_tokens,
                "repeated_tokens": counts.repeated_tokens,
                "truncated_tokens": counts.truncated_tokens,
                "documents_cut": counts.documents_cut,
                "padding_share": counts.padding_share,
            },
            options={"inputs": [str(item) for item in inputs], **asdict(config)},
            sources=[
                {"path": source.path, "bytes": source.bytes, "sha256": digest, "documents": documents}
                for source, digest, documents in zip(
                    self._sources, self._hashes, self._statistics.documents_by_source, strict=True
                )
            ],
            dropped=dict(self._statistics.dropped),
            shards=self._writer.shards,
        )
        write_report(self._folder, manifest, self._statistics, self._cleaner.changed)
        write_manifest(self._folder, manifest)
        logger.info(
            "%d documents, %d tokens, %d rows in %d shards, %.2f%% padding",
            manifest.documents, manifest.tokens, manifest.rows, len(manifest.shards), 100 * counts.padding_share,
        )  # fmt: skip
        return manifest
