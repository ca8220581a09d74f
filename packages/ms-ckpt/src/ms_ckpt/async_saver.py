"""Saving beside the training: `save` copies the tensors, one thread writes them, errors come at the next call."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace as changed
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from ms_ckpt.block import Block, Content, blocks_of
from ms_ckpt.checkpoint import Checkpoint
from ms_ckpt.commit import STATE_FORMAT, state_bytes
from ms_ckpt.document import from_bytes
from ms_ckpt.errors import CkptError, SaveError
from ms_ckpt.tensor import NUMPY_DTYPES, Array, LazyTensor, returned_form, words_of

_log = logging.getLogger(__name__)


class Store(Protocol):
    """What is saved through: a CheckpointStore, a RankStore or a part of one."""

    def save(
        self, step: int, tensors: Mapping[str, Content], values: Mapping[str, Any], *, replace: bool = False
    ) -> Path:
        """Saves a step."""

    def load(self, step: int | None = None) -> Checkpoint | None:
        """Loads a step."""


class AsyncSaver:
    """A store whose `save` returns as soon as the tensors are copied; use it as a context manager, or `close` it.

    One save is written at a time: a second one that comes too early waits for the first. The copies lie in memory that
    is allocated once (as much as the tensors) and used again.
    """

    def __init__(self, store: Store) -> None:
        """Saves and loads through `store`, which may be a CheckpointStore or a RankStore."""
        self.store = store
        self._writer = ThreadPoolExecutor(1, "ms-ckpt-save")
        self._under_way: Future[Path] | None = None
        self._staging: dict[tuple[str, int], tuple[str, Array]] = {}
        self._is_closed = False

    def save(
        self, step: int, tensors: Mapping[str, Content], values: Mapping[str, Any], *, replace: bool = False
    ) -> None:
        """Takes copies and begins to write them; the tensors and values may change as soon as this returns.

        Raises:
            ValuesError: a value or tensor cannot be stored exactly.
            CkptError: whatever `CheckpointStore.save` raised for the save before, or SaveError after `close`.
        """
        if self._is_closed:
            raise SaveError(f"step {step} was not saved: this saver is closed")
        frozen = from_bytes(state_bytes(step, values), "values", format_name=STATE_FORMAT)["values"]
        staged = self._stage(blocks_of(tensors))
        self._under_way = self._writer.submit(self.store.save, step, staged, frozen, replace=replace)

    def prepare(self, tensors: Mapping[str, Content]) -> None:
        """Allocates the memory for copies of these tensors now, so that the first `save` takes no longer."""
        self._stage(blocks_of(tensors))

    def wait(self) -> Path | None:
        """Returns when nothing is being written any more: the folder just written, or None if there was none.

        Raises what the save raised (once).
        """
        under_way, self._under_way = self._under_way, None
        return under_way.result() if under_way is not None else None

    def load(self, step: int | None = None) -> Checkpoint | None:
        """Waits for a save under way, then loads as `CheckpointStore.load`."""
        self.wait()
        return self.store.load(step)

    def close(self) -> None:
        """Waits, lets go of thread and memory, and raises what the last save raised; further calls do nothing."""
        self._is_closed = True
        try:
            self.wait()
        finally:
            self._writer.shutdown()
            self._staging.clear()

    def __enter__(self) -> "AsyncSaver":
        """The saver itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it; a failed save is logged, not raised, when another error is already on its way."""
        try:
            self.close()
        except (CkptError, OSError) as failure:
            if error is None:
                raise
            _log.error("the last checkpoint was not saved: %s", failure)

    def _stage(self, blocks: Mapping[str, Sequence[Block]]) -> dict[str, list[Block]]:
        """The same blocks with their data in the staging memory."""
        live = {
            (name, number): words_of(name, block.data.read() if isinstance(block.data, LazyTensor) else block.data)
            for name, held in blocks.items()
            for number, block in enumerate(held)
        }
        self.wait()
        for gone in self._staging.keys() - live.keys():
            del self._staging[gone]
        for place, (dtype, words) in live.items():
            kept = self._staging.get(place)
            if kept is None or kept[0] != dtype or kept[1].shape != words.shape:
                kept = self._staging[place] = (dtype, np.empty(words.shape, NUMPY_DTYPES[dtype]))
            np.copyto(kept[1], words)
        return {
            name: [
                changed(block, data=returned_form(*self._staging[name, number])) for number, block in enumerate(held)
            ]
            for name, held in blocks.items()
        }
