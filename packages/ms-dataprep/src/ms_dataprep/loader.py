"""The loader: batches of a dataset for one rank, in an order that any position of is reached at once."""

import logging
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.batches import COLUMNS, make_batch, mask_rows
from ms_dataprep.errors import ConfigError, DatasetError
from ms_dataprep.manifest import Manifest, read_manifest
from ms_dataprep.mindrecord import RowReader, count_rows
from ms_dataprep.order import rows_at
from ms_dataprep.shards import hash_file

logger = logging.getLogger(__name__)

_OPEN_SHARDS = 64


class Rows:
    """The rows of a dataset folder by number; files are mapped when they are first read.

    Args:
        folder: the dataset.
        manifest: what `read_manifest` made of it.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._first_rows = np.cumsum([0] + [shard.rows for shard in manifest.shards])
        self._readers: OrderedDict[int, RowReader] = OrderedDict()

    def __len__(self) -> int:
        return self._manifest.rows

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Rows [len(numbers), row_length] (int32).

        Raises:
            DatasetError: a shard is damaged, or an id lies outside the vocabulary (names row and id).
        """
        rows = np.empty((len(numbers), self._manifest.row_length), dtype=np.int32)
        shards = np.searchsorted(self._first_rows, numbers, side="right") - 1
        for place, (number, shard) in enumerate(zip(numbers.tolist(), shards.tolist(), strict=True)):
            self._reader(shard).read(number - int(self._first_rows[shard]), rows[place])
        self.refuse_outside(rows, numbers, self._manifest.vocab_size)
        return rows

    def refuse_outside(self, rows: NDArray[np.int32], numbers: NDArray[np.int64], vocab_size: int) -> None:
        """Raises DatasetError for the first id that is negative or not below `vocab_size`."""
        ids = rows.view(np.uint32)  # a negative id becomes a huge one
        if len(rows) and int(ids.max()) >= vocab_size:
            row, place = np.argwhere(ids >= vocab_size)[0]
            raise DatasetError(
                f"{self._folder}: row {numbers[row]} has id {rows[row, place]} at place {place}, outside the "
                f"vocabulary of {vocab_size}; use the tokenizer the model was made for, or run `ms-dataprep verify`"
            )

    def _reader(self, number: int) -> RowReader:
        if number in self._readers:
            self._readers.move_to_end(number)
            return self._readers[number]
        shard = self._manifest.shards[number]
        reader = RowReader(self._folder / shard.file, self._manifest.row_length, self._manifest.layout)
        if len(reader) != shard.rows:
            raise DatasetError(f"{self._folder / shard.file}: {len(reader)} rows in its index, expected {shard.rows}")
        self._readers[number] = reader
        if len(self._readers) > _OPEN_SHARDS:
            self._readers.popitem(last=False)
        return reader


class Loader:
    """Batches of one dataset for one rank; made by `load`.

    Training (the default) goes on over the epochs without end; evaluation gives every row once. Iterating gives dicts
    of `input_ids`, `labels`, `position_ids`, `segment_ids` (int32 [batch_size / world_size, seq_length]) and
    `sample_ids` (int64 [batch_size / world_size]; -1 for rows that only fill up an evaluation batch).

    Attributes:
        manifest: the dataset's manifest.
        samples: samples consumed so far by all ranks together: the only state there is. In evaluation it is not used.
    """

    def __init__(
        self,
        rows: Rows,
        manifest: Manifest,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool,
        rank: int,
        world_size: int,
        samples: int,
        evaluation: bool,
    ) -> None:
        self.manifest = manifest
        self.samples = samples
        self._rows = rows
        self._batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self._rank = rank
        self._world_size = world_size
        self._evaluation = evaluation

    @property
    def rows(self) -> int:
        """Rows of the dataset."""
        return self.manifest.rows

    @property
    def seq_length(self) -> int:
        """Tokens of a batch's rows."""
        return self.manifest.seq_length

    @property
    def epoch(self) -> int:
        """The epoch that the next sample belongs to."""
        return self.samples // self.rows

    def __len__(self) -> int:
        """Batches of an evaluation; training has no end and raises TypeError."""
        if not self._evaluation:
            raise TypeError("training goes on without end; only evaluation has a length")
        return -(-self.rows // self._batch_size)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        if self._evaluation:
            for number in range(len(self)):
                yield self.batch_at(number * self._batch_size)
            return
        while True:
            batch = self.batch_at(self.samples)
            self.samples += self._batch_size
            yield batch

    def batch_at(self, samples: int) -> dict[str, NDArray[Any]]:
        """This rank's part of the global batch that begins at global sample number `samples`; changes nothing."""
        local = self._batch_size // self._world_size
        numbers = samples + self._rank * local + np.arange(local, dtype=np.int64)
        if not self._evaluation:
            rows = rows_at(numbers, self.rows, seed=self._seed, shuffle=self._shuffle)
            return {**self._make(rows), "sample_ids": numbers}
        real = int((numbers < self.rows).sum())
        batch = self._make(np.minimum(numbers, self.rows - 1))
        mask_rows(batch, real)
        return {**batch, "sample_ids": np.where(numbers < self.rows, numbers, -1)}

    def to_dataset(self, *, columns: tuple[str, ...] = COLUMNS) -> Any:
        """A `mindspore.dataset.GeneratorDataset` of this loader's batches, for `mindspore.Model.train` and others.

        Its epoch has `rows // batch_size` batches (at least one), the evaluation's all; each training epoch goes on
        where the last ended, beginning at `samples`. MindSpore reads ahead, so `samples` of this loader is not moved:
        the position after n steps is the `samples` it was made with plus n * batch_size.
        """
        import mindspore.dataset

        source = _EpochSource(self, columns)
        return mindspore.dataset.GeneratorDataset(
            source, list(columns), shuffle=False, num_parallel_workers=1, python_multiprocessing=False
        )

    @property
    def batch_size(self) -> int:
        """Rows of a global batch."""
        return self._batch_size

    @property
    def is_evaluation(self) -> bool:
        """Whether every row comes exactly once, in file order."""
        return self._evaluation

    def _make(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        return make_batch(self._rows.read(rows), self.manifest.special_ids)


class _EpochSource:
    """An iterable whose every pass is one epoch's worth of batches."""

    def __init__(self, loader: Loader, columns: tuple[str, ...]) -> None:
        self._loader = loader
        self._columns = columns
        self._position = 0 if loader.is_evaluation else loader.samples
        self._num_batches = len(loader) if loader.is_evaluation else max(1, loader.rows // loader.batch_size)

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[tuple[NDArray[Any], ...]]:
        position = self._position
        for _ in range(self._num_batches):
            batch = self._loader.batch_at(position)
            position += self._loader.batch_size
            yield tuple(batch[name] for name in self._columns)
        if not self._loader.is_evaluation:
            self._position = position


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

    Raises:
        ConfigError: batch size, rank or position are impossible.
        DatasetError: the dataset is unfinished, damaged, or of another tokenizer or a larger vocabulary.
    """
    folder = Path(folder)
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank: expected 0 to world_size - 1, found rank {rank} of {world_size}")
    if batch_size < 1 or batch_size % world_size:
        raise ConfigError(f"batch_size: the global batch of {batch_size} does not divide among {world_size} ranks")
    if samples < 0:
        raise ConfigError(f"samples: expected 0 or more, found {samples}")
    manifest = read_manifest(folder)
    if tokenizer_fingerprint is not None and tokenizer_fingerprint != manifest.fingerprint:
        raise DatasetError(
            f"{folder}: made with tokenizer {manifest.fingerprint}, expected {tokenizer_fingerprint}; build it again "
            "with the model's tokenizer"
        )
    for shard in manifest.shards:
        if (found := count_rows(folder / shard.file)) != shard.rows:
            raise DatasetError(
                f"{folder / shard.file}: {found} rows in its index, expected {shard.rows}; copy it again"
            )
        if verify and (digest := hash_file(folder / shard.file)) != shard.sha256:
            raise DatasetError(
                f"{folder / shard.file}: damaged, its hash is {digest}, expected {shard.sha256}; copy it again or "
                "build the dataset again"
            )
    rows = Rows(folder, manifest)
    if vocab_size is not None and vocab_size < manifest.vocab_size:
        logger.info(
            "%s: vocabulary of %d, the model's is %d; looking at every id", folder, manifest.vocab_size, vocab_size
        )
        for start in range(0, manifest.rows, 1024):
            numbers = np.arange(start, min(start + 1024, manifest.rows))
            rows.refuse_outside(rows.read(numbers), numbers, vocab_size)
    return Loader(
        rows,
        manifest,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        rank=rank,
        world_size=world_size,
        samples=samples,
        evaluation=evaluation,
    )
