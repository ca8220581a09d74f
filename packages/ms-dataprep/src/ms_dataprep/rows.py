"""The rows of a dataset by number, read by their place in mapped files."""

from collections import OrderedDict
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.errors import DatasetError
from ms_dataprep.manifest import Manifest
from ms_dataprep.mindrecord import RowReader

_OPEN_SHARDS = 64


class Rows:
    """The rows of a dataset folder by number; files are mapped when they are first read.

    Args:
        folder: the dataset.
        manifest: what `read_manifest` made of it.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self.manifest = manifest
        self._first_rows = np.cumsum([0] + [shard.rows for shard in manifest.shards])
        self._readers: OrderedDict[int, RowReader] = OrderedDict()
        self._lock = Lock()  # worker threads read ahead

    def __len__(self) -> int:
        return self.manifest.rows

    def read(self, numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Rows [len(numbers), row_length] (int32).

        Raises:
            DatasetError: a shard is damaged, or an id lies outside the vocabulary (names row and id).
        """
        rows = np.empty((len(numbers), self.manifest.row_length), dtype=np.int32)
        shards = np.searchsorted(self._first_rows, numbers, side="right") - 1
        places = numbers - self._first_rows[shards]
        for row, shard, place in zip(rows, shards.tolist(), places.tolist(), strict=True):
            self._reader(shard).read(place, row)
        self.refuse_outside(rows, numbers, self.manifest.vocab_size)
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
        with self._lock:
            if number in self._readers:
                self._readers.move_to_end(number)
                return self._readers[number]
            path, expected = self._folder / self.manifest.shards[number].file, self.manifest.shards[number].rows
            reader = RowReader(path, self.manifest.row_length, self.manifest.layout)
            if len(reader) != expected:
                raise DatasetError(f"{path}: {len(reader)} rows in its index, expected {expected}")
            self._readers[number] = reader
            if len(self._readers) > _OPEN_SHARDS:
                self._readers.popitem(last=False)
            return reader
