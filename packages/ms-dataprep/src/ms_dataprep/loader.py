"""The loader: batches for one rank, in an order that any position of is reached at once."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.batches import COLUMNS, make_batch, mask_rows
from ms_dataprep.errors import ConfigError, DatasetError
from ms_dataprep.manifest import Manifest, read_manifest
from ms_dataprep.masking import MaskingConfig, mask_batch
from ms_dataprep.mindrecord import count_rows
from ms_dataprep.mixture import Mixture
from ms_dataprep.order import SampleOrder
from ms_dataprep.read_ahead import read_ahead
from ms_dataprep.rows import Rows
from ms_dataprep.shards import hash_file
from ms_dataprep.stock import StockFormat, describe_stock

logger = logging.getLogger(__name__)

Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """What a loader gives of its datasets; see `load`."""

    batch_size: int
    seed: int = 0
    shuffle: bool = True
    rank: int = 0
    world_size: int = 1
    evaluation: bool = False
    masking: MaskingConfig | None = None
    num_threads: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError for what is impossible."""
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank: expected 0 to world_size - 1, found rank {self.rank} of {self.world_size}")
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise ConfigError(
                f"batch_size: the global batch of {self.batch_size} does not divide among {self.world_size} ranks"
            )
        if self.num_threads < 0:
            raise ConfigError(f"num_threads: expected 0 or more, found {self.num_threads}")


class Loader:
    """Batches of one dataset or of a mixture for one rank; made by `load` and `load_mixture`.

    Training (the default) goes on over the epochs without end; evaluation gives every row once. Iterating gives dicts
    of `input_ids`, `labels`, `position_ids`, `segment_ids` (int32 [batch_size / world_size, seq_length]) and
    `sample_ids` (int64 [batch_size / world_size], the global sample numbers; -1 for rows that only fill up an
    evaluation batch); of a mixture also `dataset_ids` (int64, the datasets' numbers).

    Attributes:
        manifest: the (first) dataset's manifest.
        samples: samples consumed so far by all ranks together: the only state there is. In evaluation it is not used.
        rows: rows of all datasets together.
    """

    def __init__(
        self, datasets: Sequence[Rows], options: LoaderOptions, *, samples: int = 0, mixture: Mixture | None = None
    ) -> None:
        """Used by `load` and `load_mixture`."""
        if samples < 0:
            raise ConfigError(f"samples: expected 0 or more, found {samples}")
        self.manifest = datasets[0].manifest
        self.samples = samples
        self.rows = sum(len(rows) for rows in datasets)
        self._datasets = datasets
        self._options = options
        self._mixture = mixture
        self._orders = [SampleOrder(len(rows), seed=options.seed, shuffle=options.shuffle) for rows in datasets]

    @property
    def seq_length(self) -> int:
        """Tokens of a batch's rows."""
        return self.manifest.seq_length

    @property
    def batch_size(self) -> int:
        """Rows of a global batch."""
        return self._options.batch_size

    @property
    def is_evaluation(self) -> bool:
        """Whether every row comes exactly once, in file order."""
        return self._options.evaluation

    @property
    def epoch(self) -> int:
        """The epoch that the next sample belongs to: how often all rows' number of samples was consumed."""
        return self.samples // self.rows

    @property
    def state(self) -> dict[str, int]:
        """All that a restart needs: `{"seed", "epoch", "samples"}`; give `samples` and `seed` to `load`."""
        return {"seed": self._options.seed, "epoch": self.epoch, "samples": self.samples}

    def __len__(self) -> int:
        """Batches of an evaluation; training has no end and raises TypeError."""
        if not self.is_evaluation:
            raise TypeError("training goes on without end; only evaluation has a length")
        return -(-self.rows // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Batches in order, made ahead in `num_threads` threads; `samples` moves on with each batch given."""
        for samples, batch in self._numbered_batches():
            if not self.is_evaluation:
                self.samples = samples + self.batch_size
            yield batch

    def batch_at(self, samples: int) -> Batch:
        """This rank's part of the global batch that begins at global sample number `samples`; changes nothing."""
        options = self._options
        local = options.batch_size // options.world_size
        numbers = samples + options.rank * local + np.arange(local, dtype=np.int64)
        if options.evaluation:
            real = int((numbers < self.rows).sum())
            batch: Batch = self._make(self._datasets[0].read(np.minimum(numbers, self.rows - 1)))
            mask_rows(batch, real)
            batch["sample_ids"] = np.where(numbers < self.rows, numbers, -1)
        elif self._mixture is None:
            batch = self._make(self._datasets[0].read(self._orders[0].rows(numbers)))
            batch["sample_ids"] = numbers
        else:
            datasets, within = self._mixture.deal(numbers)
            rows = np.empty((local, self.manifest.row_length), dtype=np.int32)
            for dataset in np.unique(datasets).tolist():
                here = datasets == dataset
                rows[here] = self._datasets[dataset].read(self._orders[dataset].rows(within[here]))
            batch = {**self._make(rows), "sample_ids": numbers, "dataset_ids": datasets}
        if options.masking is None:
            return batch
        vocab_size = max(rows.manifest.vocab_size for rows in self._datasets)
        return mask_batch(batch, options.masking, self.manifest.special_ids, seed=options.seed, vocab_size=vocab_size)

    def to_dataset(self, *, columns: tuple[str, ...] = COLUMNS) -> Any:
        """A `mindspore.dataset.GeneratorDataset` of this loader's batches, for `mindspore.Model.train` and others.

        Its epoch has `rows // batch_size` batches (at least one), the evaluation's all; each training epoch goes on
        where the last ended, beginning at `samples`. MindSpore reads ahead, so `samples` of this loader is not moved:
        the position after n steps is the `samples` it was made with plus n * batch_size.
        """
        from ms_dataprep.mindspore import as_dataset

        return as_dataset(self, columns)

    def _numbered_batches(self) -> Iterator[tuple[int, Batch]]:
        def make(samples: int) -> tuple[int, Batch]:
            return samples, self.batch_at(samples)

        threads = self._options.num_threads
        return (
            read_ahead(make, self._positions(), depth=2 * threads, num_threads=threads)
            if threads
            else map(make, self._positions())
        )

    def _positions(self) -> Iterator[int]:
        position = 0 if self.is_evaluation else self.samples
        end = len(self) * self.batch_size if self.is_evaluation else None
        while end is None or position < end:
            yield position
            position += self.batch_size

    def _make(self, rows: NDArray[np.int32]) -> Batch:
        return {**make_batch(rows, self.manifest.special_ids)}


def load(
    folder: str | Path,
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    rank: int = 0,
    world_size: int = 1,
    samples: int = 0,
    verify: bool = False,
    evaluation: bool = False,
    tokenizer_fingerprint: str | None = None,
    vocab_size: int | None = None,
    masking: MaskingConfig | None = None,
    num_threads: int = 0,
    stock: StockFormat | None = None,
) -> Loader:
    """Opens a dataset for training or evaluation.

    Args:
        folder: the dataset.
        batch_size: rows of a global batch, over all ranks.
        seed: with the epoch, decides the order of training rows.
        shuffle: False trains in file order.
        rank, world_size: which contiguous part of each global batch to give.
        samples: samples consumed so far; training goes on from there.
        verify: whether to compare every shard's hash first (reads the whole dataset).
        evaluation: every row once, in file order, the last batch filled up with masked rows.
        tokenizer_fingerprint: the model's tokenizer; another one in the dataset is refused.
        vocab_size: the model's vocabulary; rows with ids beyond it are refused before training.
        masking: hides ids, for masked-language-model training of an encoder.
        num_threads: threads that make batches ahead of the caller; 0 makes each when it is asked for.
        stock: for a folder of MindRecord files that another program wrote: what a manifest would say.

    Raises:
        ConfigError: batch size, rank or position are impossible.
        DatasetError: the dataset is unfinished, damaged, or of another tokenizer or a larger vocabulary.
    """
    options = LoaderOptions(
        batch_size=batch_size, seed=seed, shuffle=shuffle, rank=rank, world_size=world_size, evaluation=evaluation,
        masking=masking, num_threads=num_threads,
    )  # fmt: skip
    if stock is None:
        rows = _open(Path(folder), verify=verify, fingerprint=tokenizer_fingerprint, vocab_size=vocab_size)
    else:
        if verify or tokenizer_fingerprint is not None:
            raise ConfigError("stock: without a manifest there is no hash to verify and no fingerprint to compare")
        rows = Rows(Path(folder), describe_stock(Path(folder), stock))
        if vocab_size is not None:
            _look_at_all(rows, vocab_size)
    return Loader([rows], options, samples=samples)


def load_mixture(
    datasets: Sequence[tuple[str | Path, float]],
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    rank: int = 0,
    world_size: int = 1,
    samples: int = 0,
    verify: bool = False,
    tokenizer_fingerprint: str | None = None,
    vocab_size: int | None = None,
    masking: MaskingConfig | None = None,
    num_threads: int = 0,
) -> Loader:
    """Opens several datasets for training; which one a sample comes from follows the weights (see `Mixture`).

    Each dataset keeps its own epochs: a small one with a large weight begins anew more often.

    Args:
        datasets: (folder, weight); weights are positive numbers of any sum. All share seq_length, tokenizer and
            special ids.
        batch_size, seed, shuffle, rank, world_size, samples, verify, tokenizer_fingerprint, vocab_size, masking,
            num_threads: as for `load`.

    Raises:
        ConfigError: weights, batch size, rank or position are impossible.
        DatasetError: a dataset cannot be used, or differs from the first in what must be shared.
    """
    options = LoaderOptions(
        batch_size=batch_size, seed=seed, shuffle=shuffle, rank=rank, world_size=world_size, masking=masking,
        num_threads=num_threads,
    )  # fmt: skip
    mixture = Mixture([weight for _, weight in datasets], seed=seed)
    opened = [
        _open(Path(folder), verify=verify, fingerprint=tokenizer_fingerprint, vocab_size=vocab_size)
        for folder, _ in datasets
    ]
    first = opened[0].manifest
    for (folder, _), rows in zip(datasets, opened, strict=True):
        for name in ("seq_length", "fingerprint", "special_ids"):
            expected, found = getattr(first, name), getattr(rows.manifest, name)
            if found != expected:
                raise DatasetError(f"{folder}: {name} is {found}, that of {datasets[0][0]} is {expected}")
    return Loader(opened, options, samples=samples, mixture=mixture)


def _open(folder: Path, *, verify: bool, fingerprint: str | None, vocab_size: int | None) -> Rows:
    manifest = read_manifest(folder)
    if fingerprint is not None and fingerprint != manifest.fingerprint:
        raise DatasetError(
            f"{folder}: made with tokenizer {manifest.fingerprint}, expected {fingerprint}; build it again with the "
            "model's tokenizer"
        )
    _check_shards(folder, manifest, verify=verify)
    rows = Rows(folder, manifest)
    if vocab_size is not None and vocab_size < manifest.vocab_size:
        logger.info(
            "%s: vocabulary of %d, the model's is %d; looking at every id", folder, manifest.vocab_size, vocab_size
        )
        _look_at_all(rows, vocab_size)
    return rows


def _look_at_all(rows: Rows, vocab_size: int) -> None:
    for start in range(0, len(rows), 1024):
        numbers = np.arange(start, min(start + 1024, len(rows)))
        rows.refuse_outside(rows.read(numbers), numbers, vocab_size)


def _check_shards(folder: Path, manifest: Manifest, *, verify: bool) -> None:
    for shard in manifest.shards:
        path = folder / shard.file
        if (found := count_rows(path)) != shard.rows:
            raise DatasetError(f"{path}: {found} rows in its index, expected {shard.rows}; copy it again")
        if verify and (digest := hash_file(path)) != shard.sha256:
            raise DatasetError(
                f"{path}: damaged, its hash is {digest}, expected {shard.sha256}; copy it again or build the dataset "
                "again"
            )
