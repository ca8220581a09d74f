"""What the training loop costs: against the bare compiled step, waiting for data, and a start from the compile cache.

`loop_overhead`: seconds a step of `train` (metrics, progress, checks) over those of the bare step on the same batches,
in one process, in alternating turns. `data_wait_share`: share of the loop's time spent waiting for ms-dataprep's
loader. `warm_start_speedup`: seconds of the first step, compilation included, without and with a stored graph.
"""

import io
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FIGURES = {
    "loop_overhead": "loop_overhead",
    "data_wait_share": "data_wait_share",
    "warm_start_speedup": ("cold_start", "warm_start"),
}
UNIT = "share or s"
BATCH, LENGTH, VOCAB, LAYERS, WARMUP, TURN, TURNS = 8, 256, 8192, 4, 3, 5, 8
CACHE = Path(tempfile.gettempdir()) / "ms-trainloop-benchmark-cache"


def measure(contender: str) -> float:
    """Returns a share, or for the starts seconds."""
    return {
        "loop_overhead": _overhead,
        "data_wait_share": _data_wait,
        "cold_start": lambda: _first_step(is_warm=False),
        "warm_start": lambda: _first_step(is_warm=True),
    }[contender]()


def _make_step(layers: int = LAYERS, **changes: Any) -> Any:
    from ms_gptmodel import LanguageModel, ModelConfig, named_parameters
    from ms_trainloop import TrainConfig, TrainStep

    sizes = {
        "vocab_size": VOCAB, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": layers,
        "num_attention_heads": 4, "max_position_embeddings": LENGTH,
    }  # fmt: skip
    model = LanguageModel(ModelConfig.from_mapping(sizes), seed=0)
    defaults = {"steps": 1000, "global_batch_size": BATCH, "micro_batch_size": BATCH, "learning_rate": 1e-4}
    config = TrainConfig(**{**defaults, "warmup_steps": 10, "log_every": 1, **changes})
    return TrainStep(model, config, parameters=named_parameters(model))


def _batches(count: int) -> list[dict[str, np.ndarray]]:
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (BATCH, LENGTH)).copy()
    rows = np.random.default_rng(0).integers(0, VOCAB, (count, BATCH, LENGTH + 1), dtype=np.int32)
    return [
        {
            "input_ids": np.ascontiguousarray(row[:, :-1]), "labels": np.ascontiguousarray(row[:, 1:]),
            "position_ids": positions, "segment_ids": np.ones_like(positions),
        }
        for row in rows
    ]  # fmt: skip


def _overhead() -> float:
    """Median over turns of (seconds of some steps of the loop) / (seconds of as many bare ones before and after)."""
    from ms_trainloop import train

    step, bare, looped = _make_step(), [], []
    batches = _batches(TURN)
    for batch in batches[:WARMUP]:
        step.run(batch)
    gaps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:

        def turn() -> float:
            start = time.perf_counter()
            for batch in batches:
                step.run(batch)
            return time.perf_counter() - start

        def endless(_: int) -> Any:
            while True:
                for number, batch in enumerate(batches):
                    if number == 0:  # a turn of the loop is over: now a bare one, whose time is taken out
                        now = time.perf_counter()
                        if gaps:
                            looped.append(now - gaps[-1])
                        bare.append(turn())
                        gaps.append(time.perf_counter())
                    yield batch

        train(step, endless, run_dir=Path(folder), progress=io.StringIO(), vocab_size=VOCAB,
              stop_after=TURN * TURNS + 1)  # fmt: skip
    pairs = [
        2 * inside / (before + after) for inside, before, after in zip(looped[1:], bare[1:], bare[2:], strict=False)
    ]
    return statistics.median(pairs)


def _data_wait() -> float:
    """Median of `data_wait` over the logged steps after the first, with packed rows of a made-up corpus."""
    import ms_dataprep
    from ms_trainloop import train

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = [f"word{number}" for number in range(400)]
        rng = np.random.default_rng(0)
        with (folder / "text.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(1500):
                file.write(json.dumps({"text": " ".join(rng.choice(words, 120))}) + "\n")
        loader = _build_dataset(ms_dataprep, folder)
        steps = 25
        step = _make_step(steps=steps)
        train(step, loader, run_dir=folder / "run", progress=None, vocab_size=VOCAB)
        lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()[1:]]
    return statistics.median(line["data_wait"] for line in lines[2:])


def _build_dataset(ms_dataprep: Any, folder: Path) -> Any:
    from ms_dataprep.config import DataConfig, TokenizerConfig

    tokenizer = folder / "tokenizer.json"
    ms_dataprep.train_tokenizer([str(folder / "text.jsonl")], tokenizer, TokenizerConfig(vocab_size=600))
    config = DataConfig(seq_length=LENGTH, min_characters=1)
    ms_dataprep.build([str(folder / "text.jsonl")], folder / "data", tokenizer=tokenizer, config=config)
    return lambda samples: ms_dataprep.load(folder / "data", batch_size=BATCH, seed=0, samples=samples)


def _first_step(*, is_warm: bool) -> float:
    if not is_warm:
        shutil.rmtree(CACHE, ignore_errors=True)
    step = _make_step(12, compile_cache=str(CACHE))
    (batch,) = _batches(1)
    start = time.perf_counter()
    step.run(batch)
    seconds = time.perf_counter() - start
    if step.is_warm is not is_warm:
        sys.exit(f"the compile cache was {'not ' if is_warm else ''}used")
    return seconds
