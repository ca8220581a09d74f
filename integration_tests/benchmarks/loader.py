"""Training batches in shuffled order, all four columns of contract `batch`, from rows of 2049 ids of documents."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

FIGURES = {
    "loader_mtok_s": "loader",
    "loader_vs_minddataset": ("loader", "minddataset"),
    "loader_int32_mtok_s": "loader_int32",
    "resume_ms": "resume",
    "loader_int32_vs_minddataset": ("loader_int32", "minddataset_int32"),
}
UNIT = "Mtok/cpu-s, or ms for resume"
ROWS, SEQ_LENGTH, BATCH, VOCAB, DOCUMENT = 8192, 2048, 16, 50000, 400
SECONDS = 3.0


def measure(contender: str) -> float:
    """Returns millions of input ids per cpu-second, all threads of the process counted, after a warm-up.

    Of `resume`, milliseconds from `load` to the first batch, in the middle of an order of 10^8 samples.
    """
    layout = "int32" if contender.endswith("int32") else "bytes"
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder), "bytes" if contender == "resume" else layout)
        if contender == "resume":
            return _resume(Path(folder))
        batches = _loader(Path(folder)) if contender.startswith("loader") else _minddataset(Path(folder), layout)
        for _ in range(20):
            next(batches)
        tokens, begin, start = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begin < SECONDS:
            batch = next(batches)
            tokens += batch["input_ids"].size
        return tokens / 1e6 / (time.process_time() - start)


def write_dataset(folder: Path, layout: str) -> None:
    """Writes a dataset of random documents of 400 ids on average."""
    from ms_dataprep import Manifest, SpecialIds
    from ms_dataprep.manifest import write_manifest
    from ms_dataprep.mindrecord import choose_sizes
    from ms_dataprep.shards import write_shard

    rng = np.random.default_rng(0)
    rows = np.minimum(rng.geometric(1 / 4000, (ROWS, SEQ_LENGTH + 1)), VOCAB - 1).astype(np.int32)
    rows[rng.random(rows.shape) < 1 / DOCUMENT] = 0
    rows[:, -1] = 0
    rows[:, -2] = 1  # no padding
    sizes = choose_sizes(likely_rows=ROWS // 4, most_rows=ROWS // 4, row_length=SEQ_LENGTH + 1, layout=layout)
    shards = [
        write_shard(folder, number, part, layout=layout, sizes=sizes) for number, part in enumerate(np.split(rows, 4))
    ]
    packing = {"method": "best_fit", "padding_tokens": 0, "repeated_tokens": 0, "truncated_tokens": 0,
               "documents_cut": 0, "padding_share": 0.0}  # fmt: skip
    manifest = Manifest(
        created_by="benchmark", mindspore_version="", seq_length=SEQ_LENGTH, row_length=SEQ_LENGTH + 1, layout=layout,
        column="input_ids", rows=ROWS, tokens=rows.size, documents=int((rows == 0).sum()), vocab_size=VOCAB,
        special_ids=SpecialIds(eod=0), tokenizer={"file": "tokenizer.json", "kind": "huggingface", "fingerprint": "-"},
        packing=packing, options={}, sources=[], dropped={}, shards=shards,
    )  # fmt: skip
    write_manifest(folder, manifest)


def _loader(folder: Path) -> Iterator[dict[str, np.ndarray]]:
    import ms_dataprep

    return iter(ms_dataprep.load(folder, batch_size=BATCH, seed=1))


def _resume(folder: Path) -> float:
    """The dataset is small, its order is that of 10^8 rows: opening and the permutation are what a resume costs."""
    import ms_dataprep
    from ms_dataprep.order import SampleOrder

    next(iter(ms_dataprep.load(folder, batch_size=BATCH, seed=1)))  # imports
    begin = time.perf_counter()
    next(iter(ms_dataprep.load(folder, batch_size=BATCH, seed=1, samples=2 * 10**8 + 12_345_678)))
    SampleOrder(10**8, seed=1).rows(2 * 10**8 + 12_345_678 + np.arange(BATCH))
    return 1000 * (time.perf_counter() - begin)


def _minddataset(folder: Path, layout: str) -> Iterator[dict[str, np.ndarray]]:
    """MindSpore's own reader, shuffled by it, with the columns that a plain script makes of its rows."""
    import mindspore.dataset

    mindspore.dataset.config.set_num_parallel_workers(2)
    while True:
        files = sorted(map(str, folder.glob("*.mindrecord")))
        dataset = mindspore.dataset.MindDataset(files, columns_list=["input_ids"], shuffle=True)
        for rows in dataset.batch(BATCH).create_dict_iterator(num_epochs=1, output_numpy=True):
            ids = rows["input_ids"]
            yield _columns(ids.view("<i4").reshape(len(ids), -1) if layout == "bytes" else ids)


def _columns(rows: np.ndarray) -> dict[str, np.ndarray]:
    inputs = np.ascontiguousarray(rows[:, :-1])
    places = np.arange(inputs.shape[1], dtype=np.int32)
    is_end = inputs == 0
    begins = np.concatenate((np.ones((len(rows), 1), bool), is_end[:, :-1]), axis=1)
    return {
        "input_ids": inputs,
        "labels": np.where(is_end, np.int32(-100), rows[:, 1:]),
        "position_ids": places - np.maximum.accumulate(np.where(begins, places, np.int32(0)), axis=1),
        "segment_ids": np.cumsum(begins, axis=1, dtype=np.int32),
    }
