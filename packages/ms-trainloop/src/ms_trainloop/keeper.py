"""What a run keeps: checkpoints to go on from or back to, and a record of the first step that is not finite."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ms_trainloop.errors import DivergenceError
from ms_trainloop.forensics import describe, write_record
from ms_trainloop.resume import Checkpointer, Counters, capture, restore
from ms_trainloop.step import StepResult, TrainStep

_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Keeper:
    """Saves, restores and records one run on one rank."""

    step: TrainStep
    run_dir: Path
    checkpointer: Checkpointer | None
    samples_per_epoch: int | None
    tokenizer_fingerprint: str | None
    config: Mapping[str, Any] | None
    rank: int
    is_saved_by_every_rank: bool
    counters: Counters
    """Where the run stands; changed in place by `resume` and `roll_back`."""

    def resume(self) -> int | None:
        """Goes on from the newest saved state; returns its step, or None for a fresh start."""
        state = self.checkpointer.load() if self.checkpointer is not None else None
        if state is None:
            return None
        self.counters.become(restore(self.step, state, tokenizer_fingerprint=self.tokenizer_fingerprint))
        _LOG.info("resumed at step %d, sample %d", self.counters.step, self.counters.samples)
        return self.counters.step

    def save(self) -> None:
        """Saves the run as it is now, if this rank does that."""
        if self.checkpointer is not None and (self.rank == 0 or self.is_saved_by_every_rank):
            self.checkpointer.save(self.counters.step, *self._capture())

    def settle(self) -> None:
        """Waits until a checkpointer that writes beside the training has written; raises what its save raised."""
        if (wait := getattr(self.checkpointer, "wait", None)) is not None:
            wait()

    def roll_back(self) -> bool:
        """Restores the last checkpoint but keeps the data position; returns False if there is no checkpoint.

        Raises:
            DivergenceError: The run has rolled back `max_rollbacks` times already.
        """
        counters = self.counters
        saved = self.checkpointer.load() if self.checkpointer is not None else None
        if saved is None:
            _LOG.warning("step %d: there is no checkpoint to roll back to; the spike was only skipped", counters.step)
            return False
        if counters.rollbacks >= self.step.config.max_rollbacks:
            raise DivergenceError(
                f"step {counters.step}: a spike after {counters.rollbacks} rollbacks (train.max_rollbacks), samples up"
                f" to {counters.samples - 1}; lower the learning rate, or look at these samples"
            )
        earlier = restore(self.step, saved, tokenizer_fingerprint=self.tokenizer_fingerprint)
        _LOG.warning(
            "step %d: rolled back to step %d; samples %d ... %d are passed over",
            counters.step, earlier.step, earlier.samples, counters.samples - 1,
        )  # fmt: skip
        earlier.samples, earlier.rollbacks = counters.samples, counters.rollbacks + 1
        counters.become(earlier)
        return True

    def explain(self, batch: Mapping[str, np.ndarray[Any, Any]], result: StepResult) -> str:
        """Records the step just skipped and returns in a sentence where its numbers stopped being finite."""
        step = self.counters.step
        folder = self.run_dir / "forensics" / (f"step-{step:08d}" + (f"-rank-{self.rank:05d}" if self.rank else ""))
        report = write_record(
            folder,
            self.step,
            batch,
            result,
            self._capture(),
            number=step,
            samples=(self.counters.samples - self.step.config.global_batch_size, self.counters.samples - 1),
            is_state_written=self.rank == 0,
        )
        return f"{describe(report['diagnosis'])}; recorded in {folder}"

    def _capture(self) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
        epoch = self.counters.samples // self.samples_per_epoch if self.samples_per_epoch else 0
        return capture(
            self.step,
            self.counters,
            epoch=epoch,
            tokenizer_fingerprint=self.tokenizer_fingerprint,
            config=self.config,
        )
