"""The training loop: batches in, metrics, evaluations, samples and checkpoints out, until the last step or a signal."""

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ms_trainloop.errors import BatchError, DivergenceError, Interrupted
from ms_trainloop.evaluation import Evaluation, evaluation_mode
from ms_trainloop.metrics import MetricsFile
from ms_trainloop.preflight import check_first_loss, require_sound_batch
from ms_trainloop.progress import Progress
from ms_trainloop.resume import Checkpointer, Counters, capture, restore
from ms_trainloop.signals import StopSignal
from ms_trainloop.step import StepResult, TrainStep
from ms_trainloop.tensorboard import EventFiles

Batches = Callable[[int], Iterable[Mapping[str, np.ndarray[Any, Any]]]]
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a call of `train` ended."""

    step: int
    """Steps done since the start of the run."""
    samples: int
    """Rows consumed, over all ranks."""
    tokens: int
    """Labels trained on."""
    skipped_steps: int
    """Steps whose gradient was not finite."""
    loss: float | None
    """Loss of the last line of metrics this call wrote; None if it wrote none or the loss was not finite."""
    evaluation: Evaluation | None
    """Last evaluation of this call."""
    resumed_from: int | None
    """Step of the state it went on from; None for a fresh start."""
    is_finished: bool
    """False if it ended at `stop_after`."""


def train(
    step: TrainStep,
    batches: Batches,
    *,
    run_dir: Path,
    checkpointer: Checkpointer | None = None,
    evaluate: Callable[[], Evaluation] | None = None,
    sample: Callable[[], Iterable[tuple[str, str]]] | None = None,
    on_step: Callable[[int, StepResult], None] | None = None,
    vocab_size: int | None = None,
    samples_per_epoch: int | None = None,
    tokenizer_fingerprint: str | None = None,
    config: Mapping[str, Any] | None = None,
    rank: int = 0,
    is_saved_by_every_rank: bool = False,
    stop_after: int | None = None,
    progress: TextIO | None = sys.stderr,
    clock: Callable[[], float] = time.perf_counter,
) -> TrainResult:
    """Trains until `step.config.steps` steps are done, going on from the checkpointer's state if it has one.

    Args:
        step: The compiled step; its `config` rules the loop.
        batches: `batches(samples)` gives this rank's batches (contract `batch`, `global_batch_size / ranks` rows
            each) from the global sample number on; it is asked again where its iterable ends.
        run_dir: Gets `metrics.jsonl` (rank 0).
        checkpointer: See resume.py. Every rank loads; rank 0 saves, or all of them if `is_saved_by_every_rank`.
        evaluate: Gives an Evaluation of the model as it is now; called on every rank.
        sample: Gives (prompt, text) pairs; called on rank 0, in evaluation mode.
        on_step: Told the number of steps done and the result, after each.
        vocab_size: Lets the first batch's ids and the first loss be checked.
        samples_per_epoch: Rows of the data set; gives the saved `epoch` (0 without it).
        tokenizer_fingerprint: Saved, and compared on resume.
        config: The caller's own configuration, JSON values, saved as it is.
        rank: This process's number; rank 0 writes.
        stop_after: Saves and returns after this many steps of the run (not of this call).
        progress: Stream for the bar or the lines; None is silent.
        clock: Seconds, for the speed.

    Raises:
        Interrupted: SIGTERM or SIGINT came; the step was finished and the state saved. `code` is the exit code.
        BatchError: The first batch breaks the contract, or the batches ended early.
        DivergenceError: `max_skipped_steps` steps in a row were not finite; nothing was saved after the last save.
        ResumeError: The saved state does not fit.
    """
    state = checkpointer.load() if checkpointer is not None else None
    counters = Counters()
    if state is not None:
        counters = restore(step, state, tokenizer_fingerprint=tokenizer_fingerprint)
        _LOG.info("resumed at step %d, sample %d", counters.step, counters.samples)
    resumed_from = counters.step if state is not None else None
    last = min(step.config.steps, stop_after if stop_after is not None else step.config.steps)
    with ExitStack() as stack:
        metrics = events = None
        if rank == 0:
            metrics = stack.enter_context(MetricsFile(run_dir, step=counters.step))
            if step.config.tensorboard:
                events = EventFiles(run_dir, step=counters.step)
                stack.callback(events.close)
        bar = Progress(progress if rank == 0 else None, steps=step.config.steps, step=counters.step)
        stack.callback(bar.close)
        run = _Run(step, counters, metrics, events, bar, clock, vocab_size)
        stop = stack.enter_context(StopSignal())
        source = _Source(batches, counters.samples, clock)

        def save() -> None:
            if checkpointer is None or not (rank == 0 or is_saved_by_every_rank):
                return
            if metrics is not None:
                metrics.sync()
            epoch = counters.samples // samples_per_epoch if samples_per_epoch else 0
            checkpointer.save(
                counters.step,
                *capture(step, counters, epoch=epoch, tokenizer_fingerprint=tokenizer_fingerprint, config=config),
            )

        while counters.step < last:
            result = run.take(source, wants_stop=stop.number is not None)
            if on_step is not None:
                on_step(counters.step, result)
            run.report(source, evaluate, sample)
            must_stop = result.stop_votes > 0 if step.world_size > 1 else stop.number is not None
            every = step.config.save_every
            if must_stop or counters.step == last or (every and counters.step % every == 0):
                run.untimed(save)
            if must_stop:
                saved = "state saved" if checkpointer is not None else "nothing saved: there is no checkpointer"
                message = f"interrupted by a signal after step {counters.step} of {step.config.steps}; {saved}"
                raise Interrupted(message, code=stop.exit_code, step=counters.step)
    return TrainResult(
        step=counters.step,
        samples=counters.samples,
        tokens=counters.tokens,
        skipped_steps=counters.skipped_steps,
        loss=run.loss,
        evaluation=run.evaluation,
        resumed_from=resumed_from,
        is_finished=counters.step >= step.config.steps,
    )


class _Source:
    """Batches from a sample number on, with the time spent waiting for them."""

    def __init__(self, batches: Batches, samples: int, clock: Callable[[], float]) -> None:
        self._batches = batches
        self._iterator: Iterator[Mapping[str, np.ndarray[Any, Any]]] | None = None
        self._clock = clock
        self.samples = samples
        self.waited = 0.0

    def take(self, samples: int) -> Mapping[str, np.ndarray[Any, Any]]:
        """Returns the next batch, which stands for `samples` rows over all ranks."""
        start = self._clock()
        batch = None if self._iterator is None else next(self._iterator, None)
        if batch is None:
            self._iterator = iter(self._batches(self.samples))
            batch = next(self._iterator, None)
        if batch is None:
            raise BatchError(
                f"batches({self.samples}) gave no batch; the data is shorter than train.steps needs, or empty"
            )
        self.waited += self._clock() - start
        self.samples += samples
        return batch


class _Run:
    """One call of `train`: takes steps and writes what they gave."""

    def __init__(
        self,
        step: TrainStep,
        counters: Counters,
        metrics: MetricsFile | None,
        events: EventFiles | None,
        bar: Progress,
        clock: Callable[[], float],
        vocab_size: int | None,
    ) -> None:
        self.loss: float | None = None
        self.evaluation: Evaluation | None = None
        self._step, self._config, self._counters = step, step.config, counters
        self._metrics, self._events, self._bar = metrics, events, bar
        self._clock, self._vocab_size = clock, vocab_size
        self._rows = step.config.global_batch_size // step.world_size
        self._is_first = True
        self._result: StepResult | None = None
        self._start, self._start_step = clock(), counters.step
        self._timed_tokens = 0

    def take(self, source: _Source, *, wants_stop: bool) -> StepResult:
        """Trains on one global batch."""
        batch = source.take(self._config.global_batch_size)
        if self._is_first:
            for finding in require_sound_batch(batch, rows=self._rows, vocab_size=self._vocab_size):
                _LOG.warning("%s", finding)
        result = self._step.run(batch, wants_stop=wants_stop)
        self._counters.add(result, self._config.global_batch_size)
        self._timed_tokens += result.tokens if result.is_applied else 0
        if self._is_first and self._counters.step == 1 and self._vocab_size is not None and result.tokens:
            for finding in check_first_loss(result.loss_sum / result.tokens, self._vocab_size):
                _LOG.warning("%s", finding)
        self._is_first, self._result = False, result
        if not result.is_applied:
            self._refuse_or_warn(batch, result)
        self._bar.advance()
        return result

    def _refuse_or_warn(self, batch: Mapping[str, np.ndarray[Any, Any]], result: StepResult) -> None:
        counters = self._counters
        first = counters.samples - self._config.global_batch_size
        rows = f"samples {first} ... {counters.samples - 1}"
        if "sample_ids" in batch:
            rows += f" (on this rank {np.asarray(batch['sample_ids']).tolist()})"
        what = "no label" if result.tokens == 0 else f"loss {result.loss_sum / result.tokens:.6g}"
        text = (
            f"step {counters.step} skipped: {what}, gradient norm {result.grad_norm:.6g},"
            f" loss scale {result.loss_scale:g}, {rows}; weights unchanged"
        )
        if counters.skipped_in_row >= self._config.max_skipped_steps:
            raise DivergenceError(
                f"{text}; {counters.skipped_in_row} in a row (train.max_skipped_steps), the run stops;"
                " lower the learning rate, lengthen the warm-up, or look at these samples"
            )
        _LOG.warning("%s", text)

    def report(
        self,
        source: _Source,
        evaluate: Callable[[], Evaluation] | None,
        sample: Callable[[], Iterable[tuple[str, str]]] | None,
    ) -> None:
        """Logs, evaluates and samples if this step is due for it."""
        config, counters = self._config, self._counters
        is_last = counters.step == config.steps
        if is_last or counters.step % config.log_every == 0:
            self._log(source)
        if evaluate is not None and config.evaluate_every and (is_last or counters.step % config.evaluate_every == 0):
            self.untimed(lambda: self._evaluate(evaluate))
        if sample is not None and config.sample_every and (is_last or counters.step % config.sample_every == 0):
            self.untimed(lambda: self._sample(sample))

    def untimed(self, work: Callable[[], None]) -> None:
        """Does something that is not training: its time does not count for the speed."""
        start = self._clock()
        work()
        self._start += self._clock() - start

    def _log(self, source: _Source) -> None:
        counters, result = self._counters, self._result
        assert result is not None
        elapsed = self._clock() - self._start
        line: dict[str, Any] = {
            "kind": "train",
            "step": counters.step,
            "samples": counters.samples,
            "tokens": counters.tokens,
            "loss": counters.window_loss / counters.window_tokens if counters.window_tokens else None,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            "loss_scale": result.loss_scale,
            "tokens_per_second": self._timed_tokens / elapsed if elapsed > 0 else None,
            "data_wait": min(source.waited / elapsed, 1.0) if elapsed > 0 else 0.0,
            "mfu": None,
            "skipped_steps": counters.skipped_steps,
        }
        line = self._write(line)
        self.loss = line["loss"]
        steps = counters.step - self._start_step
        left = (self._config.steps - counters.step) * elapsed / steps if steps else None
        self._bar.show(line, left)
        counters.window_loss, counters.window_tokens = 0.0, 0
        self._start, self._start_step, self._timed_tokens, source.waited = self._clock(), counters.step, 0, 0.0

    def _evaluate(self, evaluate: Callable[[], Evaluation]) -> None:
        start = self._clock()
        found = self.evaluation = evaluate()
        self._write(
            {
                "kind": "evaluation",
                "step": self._counters.step,
                "samples": self._counters.samples,
                "loss": found.loss,
                "perplexity": found.perplexity,
                "tokens": found.tokens,
                "seconds": self._clock() - start,
            }
        )
        self._bar.say(
            f"step {self._counters.step}  evaluation: loss {found.loss:.4f}  perplexity {found.perplexity:.2f}"
            f"  ({found.tokens:,} tokens)"
        )

    def _sample(self, sample: Callable[[], Iterable[tuple[str, str]]]) -> None:
        if self._metrics is None:
            return
        with evaluation_mode(self._step.model):
            for prompt, text in sample():
                self._write({"kind": "sample", "step": self._counters.step, "prompt": prompt, "text": text})
                self._bar.say(f"step {self._counters.step}  sample: {prompt!r} -> {text!r}")

    def _write(self, line: dict[str, Any]) -> dict[str, Any]:
        if self._metrics is None:
            return line
        written = self._metrics.write(line)
        if self._events is not None:
            self._events.write(written)
        return written
