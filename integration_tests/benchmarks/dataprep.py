"""From text to MindRecord: megabytes of UTF-8 text a cpu-second, the tokenizer's loading aside, with Qwen's vocabulary.

A build's cost is that of the whole text less that of a text of one word, which is nearly all loading of a tokenizer of
151,643 tokens. English: the Linux kernel's documentation. Chinese: Tang and Song poems. Nothing is dropped. `workers_N`
are wall-clock seconds; `write` is millions of ids a cpu-second into a shard of layout `bytes`.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import real_text

FIGURES = {
    "reference_backend_vs_bare_tokenizer": ("build_reference_en", "bare_reference_en"),
    "fast_backend_mb_s_en": "build_fast_en",
    "fast_backend_mb_s_zh": "build_fast_zh",
    "speedup_vs_datatrove": ("build_fast_en", "datatrove_en"),
    "two_workers_scaling": ("workers_1", "workers_2"),
    "write_mtok_s": "write",
}
UNIT = "MB/cpu-s, s or Mtok/cpu-s"
SEQ_LENGTH = 2048
PEER = ("datatrove[processing]", "tokenizers", "orjson")
_PEER_SCRIPT = """
import sys, time
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

def run(source, out):
    folder, _, name = source.rpartition("/")
    steps = [JsonlReader(folder, glob_pattern=name, doc_progress=False),
             DocumentTokenizer(out, tokenizer_name_or_path=sys.argv[1], eos_token="<|endoftext|>",
                               shuffle_documents=False)]
    begin = time.process_time()
    LocalPipelineExecutor(steps, tasks=1, logging_dir=out + "/log", skip_completed=False).run()
    return time.process_time() - begin

if __name__ == "__main__":
    short = run(sys.argv[2], sys.argv[4] + "/short")
    print("seconds", run(sys.argv[3], sys.argv[4] + "/whole") - short)
"""


def measure(contender: str) -> float:
    """Returns the contender's rate, or seconds for `workers_N`."""
    kind, _, rest = contender.partition("_")
    if kind == "write":
        return _write()
    if kind == "workers":
        return _seconds_of_workers(int(rest))
    language = rest[-2:]
    source = real_text.chinese_text() if language == "zh" else real_text.english_text()
    megabytes = sum(len(text.encode("utf-8")) for text in _texts(source)) / 1e6
    if kind == "bare":
        return megabytes / _seconds_of_bare(source)
    if kind == "datatrove":
        return megabytes / _seconds_of_datatrove(source)
    backend = rest.removesuffix(f"_{language}")
    whole, short = (_cpu(lambda path=path: _build(path, backend)) for path in (source, _short_text()))
    return megabytes / (whole - short)


def _texts(source: Path) -> list[str]:
    with source.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in file]


def _short_text() -> Path:
    path = real_text.cache_folder() / "one-word.jsonl"
    path.write_text('{"text": "word"}\n', encoding="utf-8")
    return path


def _cpu(run: Callable[[], None]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


def _build(source: Path, backend: str, num_workers: int = 1, shard_megabytes: float = 64) -> None:
    import ms_dataprep

    config = ms_dataprep.DataConfig(
        seq_length=SEQ_LENGTH, layout="bytes", tokenizer_backend=backend, shard_megabytes=shard_megabytes
    )
    with tempfile.TemporaryDirectory() as folder:
        manifest = ms_dataprep.build(
            [source], Path(folder) / "dataset", tokenizer=real_text.qwen_tokenizer(), config=config, progress=False,
            num_workers=num_workers,
        )  # fmt: skip
    assert manifest.dropped == {}, manifest.dropped


def _seconds_of_bare(source: Path) -> float:
    """Of the tokenizers library's own batches of 4096 documents or 2 MB, as a plain script calls it."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(real_text.qwen_tokenizer()))
    texts = _texts(source)
    batches: list[list[str]] = [[]]
    for text in texts:
        if sum(map(len, batches[-1])) > 1 << 21:
            batches.append([])
        batches[-1].append(text)

    def encode() -> None:
        for batch in batches:
            for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                _ = encoding.ids

    return _cpu(encode)


def _seconds_of_datatrove(source: Path) -> float:
    python = real_text.peer_python(*PEER)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "peer.py"
        script.write_text(_PEER_SCRIPT, encoding="utf-8")
        command = [python, script, real_text.qwen_tokenizer(), _short_text(), source, folder]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stdout.split("seconds")[-1])


def _seconds_of_workers(num_workers: int) -> float:
    """Wall-clock seconds of the Chinese text with the reference tokenizer, one thread a worker, in shards of 8 MB.

    One worker is a process too, so that both sides pay for starting.
    """
    from ms_dataprep import engines, pipeline

    engine = engines.ProcessEngine(num_workers)
    pipeline._choose_engine = lambda name, workers: engine
    engines.os.cpu_count = lambda: num_workers  # threads of the tokenizer: one a worker
    begin = time.perf_counter()
    _build(real_text.chinese_text(), "reference", num_workers, shard_megabytes=8)
    return time.perf_counter() - begin


def _write() -> float:
    import numpy as np
    from ms_dataprep.mindrecord import choose_sizes
    from ms_dataprep.shards import write_shard

    rows = np.random.default_rng(0).integers(0, 150_000, (8192, SEQ_LENGTH + 1), dtype=np.int32)
    sizes = choose_sizes(likely_rows=len(rows), most_rows=len(rows), row_length=SEQ_LENGTH + 1, layout="bytes")

    def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_shard(Path(folder), 0, rows, layout="bytes", sizes=sizes)

    write()
    return rows.size / 1e6 / _cpu(write)
