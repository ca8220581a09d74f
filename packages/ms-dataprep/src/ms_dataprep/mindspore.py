"""What needs MindSpore here: a loader as a `mindspore.dataset`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ms_dataprep.errors import DataprepError

if TYPE_CHECKING:
    from ms_dataprep.loader import Loader


def as_dataset(loader: "Loader", columns: tuple[str, ...]) -> Any:
    """See `Loader.to_dataset`. Raises DataprepError without MindSpore."""
    try:
        import mindspore.dataset
    except ImportError as error:
        raise DataprepError('to_dataset needs MindSpore; pip install "ms-dataprep[mindspore]"') from error
    source = _EpochSource(loader, columns)
    return mindspore.dataset.GeneratorDataset(
        source, list(columns), shuffle=False, num_parallel_workers=1, python_multiprocessing=False
    )


class _EpochSource:
    """An iterable whose every pass is one epoch's worth of batches."""

    def __init__(self, loader: "Loader", columns: tuple[str, ...]) -> None:
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
