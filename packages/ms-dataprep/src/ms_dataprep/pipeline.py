"""The build: from input files to a finished dataset folder, in three stages of tasks and a bounded amount of memory.

Reading cleans and judges each document and spools what stays; deduplication compares hashes of all; writing tokenizes,
packs and writes a shard a task. Tasks depend on the input and the options alone, so any number of workers writes the
same bytes, and an interrupted build goes on with the tasks that are not done.
"""

import json
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ms_dataprep.__about__ import __version__
from ms_dataprep.batches import SpecialIds
from ms_dataprep.config import DataConfig
from ms_dataprep.deduplication import Duplicates, find_duplicates
from ms_dataprep.engines import Engine, InlineEngine, ProcessEngine, RayEngine
from ms_dataprep.errors import ConfigError, SourceError
from ms_dataprep.heldout import HeldoutNgrams, read_heldout
from ms_dataprep.listing import list_dropped, list_rejected, rejected_lines
from ms_dataprep.manifest import Manifest, write_manifest
from ms_dataprep.mindrecord import COLUMN, FileSizes, choose_sizes
from ms_dataprep.mindrecord_writer import FORMAT_OF
from ms_dataprep.packing import PackingCounts
from ms_dataprep.progress import Progress
from ms_dataprep.publishing import publish_folder, refuse_used_folder
from ms_dataprep.reading import DocumentReader, ReadCounts
from ms_dataprep.report import write_report
from ms_dataprep.shards import sync
from ms_dataprep.sources import Source, find_sources, hash_source
from ms_dataprep.spool import Spool
from ms_dataprep.stages import BuildState
from ms_dataprep.tasks import Task, plan_tasks
from ms_dataprep.tokenizer import Tokenizer, load_tokenizer
from ms_dataprep.writing import ShardCounts, ShardMaker, ShardPlan, most_rows, plan_shards, read_shard

logger = logging.getLogger(__name__)

STDIN = "-"
ENGINES = ("processes", "ray")
Advance = Callable[[int, int], None]


def build(
    inputs: Sequence[str | Path],
    output: str | Path,
    *,
    tokenizer: str | Path,
    config: DataConfig,
    overwrite: bool = False,
    resume: bool = False,
    num_workers: int = 1,
    engine: str = "processes",
    progress: bool = True,
) -> Manifest:
    """Builds a dataset folder (contract `dataset`) from text.

    Args:
        inputs: files (see `sources.READABLE`), folders of them (recursive), globs, or `-`: JSON lines from stdin.
        output: the folder to make; it appears, or is replaced, only when it is complete.
        tokenizer: a tokenizer.json or a SentencePiece .model; it is copied into the dataset.
        config: everything else.
        overwrite: whether a dataset at `output` may be replaced.
        resume: go on with an interrupted build of the same inputs and options, if there is one.
        num_workers: processes, or Ray actors; the shards are the same for any number.
        engine: `processes` of this machine, or `ray`.
        progress: whether to show documents, MB/s and the time left.

    Returns:
        The manifest that was written.

    Raises:
        UnfinishedError: the build was interrupted; what is done stays for `resume`.
        DataprepError: an input, the tokenizer or an option cannot be used; nothing is left behind then.
    """
    output = Path(output).absolute()
    chosen = _choose_engine(engine, num_workers)
    refuse_used_folder(output, overwrite=overwrite)
    paths = [item for item in inputs if str(item) != STDIN]
    sources = find_sources(paths) if paths or len(paths) == len(inputs) else []
    loaded = load_tokenizer(
        tokenizer, eod_token=config.eod_token, eod_id=config.eod_id, backend=config.tokenizer_backend
    )
    if config.add_bos and loaded.bos_id is None:
        raise ConfigError(f"add_bos: {loaded.path} has no beginning-of-document token")
    heldout = read_heldout(config.heldout, config.text_key, config.heldout_ngram) if config.heldout else None
    with publish_folder(output, overwrite=overwrite, resume=resume) as folder:
        options = {
            "version": __version__, "inputs": [str(item) for item in inputs], "config": asdict(config),
            "sources": [[source.path, source.bytes] for source in sources], "tokenizer": loaded.fingerprint,
        }  # fmt: skip
        state = BuildState(folder, options, is_resumed=resume)
        if len(paths) < len(inputs):
            sources.append(_spool_stdin(state.folder / "stdin.jsonl"))
        work = _Build(folder, state, sources, loaded, config, chosen, is_shown=progress)
        work.read(heldout)
        work.find_duplicates()
        work.write()
        return work.publish([str(item) for item in inputs])


class _Build:
    """One build: its tasks, and what they found."""

    def __init__(
        self,
        folder: Path,
        state: BuildState,
        sources: Sequence[Source],
        tokenizer: Tokenizer,
        config: DataConfig,
        engine: Engine,
        *,
        is_shown: bool,
    ) -> None:
        self._folder = folder
        self._state = state
        self._sources = sources
        self._tokenizer = tokenizer
        self._config = config
        self._engine = engine
        self._is_shown = is_shown
        self._shard_bytes = max(1, round(config.shard_megabytes * 1e6))
        self._tasks = plan_tasks(sources, self._shard_bytes)
        self._special = SpecialIds(
            eod=tokenizer.eod_id, pad=tokenizer.pad_id, bos=tokenizer.bos_id if config.add_bos else None
        )
        self._spools: list[Spool] = []
        self._read: list[ReadCounts] = []
        self._written: list[ShardCounts] = []
        self._duplicates = Duplicates(fates=np.empty(0, np.uint8))

    def read(self, heldout: HeldoutNgrams | None) -> None:
        """Reads every task into its spool."""
        arguments = (self._config, tuple(self._sources), heldout, self._state.folder)
        total = sum(source.bytes for source in self._sources)
        sizes = {task.number: sum(map(self._part_bytes, task.parts)) for task in self._tasks}
        self._run("read", make_reading, arguments, self._tasks, total, sizes)
        self._read = [self._state.result("read", task.number, ReadCounts) for task in self._tasks]
        self._spools = [Spool(self._state.spool(task.number)) for task in self._tasks]

    def find_duplicates(self) -> None:
        """Decides every document's fate and puts it beside its spool."""
        config = self._config
        self._duplicates = find_duplicates(
            self._spools, dedup=config.dedup, near_threshold=config.near_threshold,
            has_units=config.dedup_lines != "none",
        )  # fmt: skip
        ends = np.cumsum([len(spool) for spool in self._spools])[:-1]
        for task, fates in zip(self._tasks, np.split(self._duplicates.fates, ends), strict=True):
            np.save(self._state.spool(task.number) / "fates.npy", fates)
        for task, repeated in zip(self._tasks, self._duplicates.repeated_units, strict=False):
            np.save(self._state.spool(task.number) / "repeated.npy", repeated)

    def write(self) -> None:
        """Writes every shard."""
        folders = [self._state.spool(task.number) for task in self._tasks]
        plans = plan_shards(folders, self._spools, self._shard_bytes)
        tokenizer = self._tokenizer if isinstance(self._engine, InlineEngine) else self._tokenizer.path
        arguments = (self._config, self._folder, tokenizer, self._special, self._choose_sizes(plans))
        sizes = {plan.number: plan.num_bytes for plan in plans}
        self._run("write", make_writing, arguments, plans, sum(sizes.values()), sizes)
        self._written = [self._state.result("write", plan.number, ShardCounts) for plan in plans]
        if not any(counts.shard for counts in self._written):
            raise SourceError(self._explain_nothing())

    def publish(self, inputs: Sequence[str]) -> Manifest:
        """Writes what stands beside the shards, the manifest last."""
        config, tokenizer = self._config, self._tokenizer
        file = "tokenizer.model" if tokenizer.kind == "sentencepiece" else "tokenizer.json"
        shutil.copyfile(tokenizer.path, self._folder / file)
        sync(self._folder / file)
        counts = PackingCounts(row_length=config.row_length)
        for written in self._written:
            for name, value in written.packing.items():
                setattr(counts, name, getattr(counts, name) + value)
        documents = _add(read.documents for read in self._read)
        manifest = Manifest(
            created_by=f"ms-dataprep {__version__}",
            mindspore_version=FORMAT_OF,
            seq_length=config.seq_length,
            row_length=config.row_length,
            layout=config.layout,
            column=COLUMN,
            rows=counts.rows,
            tokens=counts.tokens,
            documents=counts.documents,
            vocab_size=tokenizer.vocab_size,
            special_ids=self._special,
            tokenizer={"file": file, "kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint},
            packing={
                "method": config.packing,
                "padding_tokens": counts.padding_tokens,
                "repeated_tokens": counts.repeated_tokens,
                "truncated_tokens": counts.truncated_tokens,
                "documents_cut": counts.documents_cut,
                "padding_share": counts.padding_share,
            },
            options=json.loads(json.dumps({"inputs": list(inputs), **asdict(config)})),  # tuples become lists
            sources=[
                {
                    "path": STDIN if Path(source.path).parent == self._state.folder else source.path,
                    "bytes": source.bytes,
                    "sha256": hash_source(source),
                    "documents": documents.get(str(number), 0),
                }
                for number, source in enumerate(self._sources)
            ],
            dropped=self._count_dropped(),
            shards=[shard for written in self._written if (shard := read_shard(written))],
        )
        folders = [self._state.spool(task.number) for task in self._tasks]
        paths = [source["path"] for source in manifest.sources]
        list_rejected(self._folder, folders, self._read, paths)
        if config.lists_dropped:
            list_dropped(self._folder, folders, self._read, paths, self._spools, self._duplicates)
        write_report(self._folder, manifest, self._read, self._written, self._duplicates)
        self._state.remove()
        write_manifest(self._folder, manifest)
        logger.info(
            "%d documents, %d tokens, %d rows in %d shards, %.2f%% padding",
            manifest.documents, manifest.tokens, manifest.rows, len(manifest.shards), 100 * counts.padding_share,
        )  # fmt: skip
        return manifest

    def _run(
        self, stage: str, make_work: Any, arguments: tuple[Any, ...], tasks: Sequence[Any], total: int,
        sizes: dict[int, int],
    ) -> None:  # fmt: skip
        todo = [task for task in tasks if not self._state.has(stage, task.number)]
        with Progress(stage, total, shown=self._is_shown) as bar:
            if len(todo) < len(tasks):
                logger.info("%s: %d of %d tasks were done before", stage, len(tasks) - len(todo), len(tasks))
                bar.advance(total - sum(sizes[task.number] for task in todo), 0)
            for task, result in self._engine.run(make_work, arguments, todo, bar.advance):
                self._state.keep(stage, task.number, result)

    def _part_bytes(self, part: Any) -> int:
        size: int = self._sources[part.source].bytes if part.num_bytes is None else part.num_bytes
        return size

    def _choose_sizes(self, plans: Sequence[ShardPlan]) -> FileSizes:
        config = self._config
        most = [most_rows(plan.num_bytes, plan.end - plan.begin, config) for plan in plans]
        likely = [plan.num_bytes // (4 * config.seq_length) + 1 for plan in plans]
        return choose_sizes(
            likely_rows=max(likely, default=1), most_rows=max(most, default=1), row_length=config.row_length,
            layout=config.layout,
        )  # fmt: skip

    def _count_dropped(self) -> dict[str, int]:
        fates = np.bincount(self._duplicates.fates, minlength=3)
        seen = {"duplicate": int(fates[1]), "near_duplicate": int(fates[2])}
        found = _add([*(read.dropped for read in self._read), *(w.dropped for w in self._written), seen])
        return {reason: count for reason, count in found.items() if count}

    def _explain_nothing(self) -> str:
        dropped = self._count_dropped()
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "no text"
        first = self._first_rejected()
        hint = ""
        if set(dropped) == {"other_part"}:
            hint = (
                f"; the part {self._config.part} is a share of the documents: give more of them (a .txt file is one), "
                "or another validation_share"
            )
        return f"no document is left of {len(self._sources)} files ({reasons}){hint}{first}"

    def _first_rejected(self) -> str:
        folders = [self._state.spool(task.number) for task in self._tasks]
        for entry in rejected_lines(folders, self._read, [source.path for source in self._sources]):
            return f"; first: {entry['file']}:{entry['line']}: {entry['reason']}"
        return ""


def make_reading(
    config: DataConfig, sources: Sequence[Source], heldout: HeldoutNgrams | None, folder: Path
) -> Callable[[Task, Advance], ReadCounts]:
    """The work of the first stage: reads a task into `folder`/spool-NNNNN."""
    reader = DocumentReader(config, sources, heldout)

    def work(task: Task, advance: Advance) -> ReadCounts:
        spool = folder / f"spool-{task.number:05d}"
        partial = spool.with_suffix(".partial")
        for left_behind in (spool, partial):
            shutil.rmtree(left_behind, ignore_errors=True)
        counts = reader.read(task, partial, advance)
        partial.rename(spool)
        return counts

    return work


def make_writing(
    config: DataConfig, folder: Path, tokenizer: Tokenizer | Path, special: SpecialIds, sizes: FileSizes
) -> Callable[[ShardPlan, Advance], ShardCounts]:
    """The work of the third stage: writes a shard into `folder`. Another process loads the tokenizer by its path."""
    if isinstance(tokenizer, Path):
        tokenizer = load_tokenizer(tokenizer, eod_id=special.eod, backend=config.tokenizer_backend)
    return ShardMaker(config, folder, tokenizer=tokenizer, special=special, sizes=sizes).make


def _choose_engine(name: str, num_workers: int) -> Engine:
    if name not in ENGINES:
        raise ConfigError(f"engine: expected one of {', '.join(ENGINES)}, found {name!r}")
    if num_workers < 1:
        raise ConfigError(f"num_workers: expected 1 or more, found {num_workers}")
    if name == "ray":
        return RayEngine(num_workers)
    return InlineEngine() if num_workers == 1 else ProcessEngine(num_workers)


def _spool_stdin(path: Path) -> Source:
    if not path.exists():
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
        partial.replace(path)
    return Source(path=str(path), kind=".jsonl", packing="", bytes=path.stat().st_size)


def _add(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)
