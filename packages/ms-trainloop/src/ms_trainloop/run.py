"""One call of `train`: takes steps, and writes and shows what they gave."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np

from ms_trainloop.errors import DivergenceError
from ms_trainloop.evaluation import Evaluation, evaluation_mode
from ms_trainloop.metrics import MetricsFile
from ms_trainloop.mfu import utilization
from ms_trainloop.preflight import check_first_loss, require_sound_batch
from ms_trainloop.progress import Progress
from ms_trainloop.rehearsal import check_memory, rehearse, require_sound
from ms_trainloop.resume import Counters
from ms_trainloop.source import BatchSource
from ms_trainloop.spikes import SpikeGuard
from ms_trainloop.step import StepResult, TrainStep
from ms_trainloop.watch import Watch

_LOG = logging.getLogger(__name__)


class Mirror(Protocol):
    """Gets every line of the metrics too: event files, an experiment tracker."""

    def write(self, line: Mapping[str, Any]) -> None:
        """Takes one line."""

    def rewind(self, step: int) -> None:
        """Lets go of what is beyond a step."""


class Run:
    """One call of `train`: takes steps and writes what they gave."""

    def __init__(
        self,
        step: TrainStep,
        counters: Counters,
        metrics: MetricsFile | None,
        mirrors: Sequence[Mirror],
        bar: Progress,
        clock: Callable[[], float],
        vocab_size: int | None,
        explain: Callable[[Mapping[str, np.ndarray[Any, Any]], StepResult], str] | None = None,
        flops_per_token: float | None = None,
    ) -> None:
        """Starts the clock; `metrics` is None where nothing is written; `mirrors` get the same lines.

        `explain` is given the first batch whose step is not finite, and what that step gave, and says why.
        """
        self.loss: float | None = None
        self.evaluation: Evaluation | None = None
        self._step, self._config, self._counters = step, step.config, counters
        self._metrics, self._mirrors, self._bar = metrics, mirrors, bar
        self._utilization = utilization(step.config, flops_per_token, step.world_size, bar.say)
        self._clock, self._vocab_size = clock, vocab_size
        self._rows = step.config.global_batch_size // step.world_size
        self._is_first = True
        self._explain = explain
        self._guard = SpikeGuard(step.config, counters.spike_losses)
        self._watch = Watch(metrics.lines if metrics is not None else ())
        self._result: StepResult | None = None
        self._start, self._start_step = clock(), counters.step
        self._timed_tokens = 0

    def take(self, source: BatchSource, *, wants_stop: bool) -> StepResult:
        """Trains on one global batch."""
        batch = source.take(self._config.global_batch_size)
        if self._is_first:
            for finding in require_sound_batch(batch, rows=self._rows, vocab_size=self._vocab_size):
                _LOG.warning("%s", finding)
            if self._config.preflight == "full":
                self.untimed(lambda: self._rehearse(batch))
            else:
                seq_length = np.asarray(batch["input_ids"]).shape[1]
                for finding in check_memory(self._step, seq_length=seq_length, vocab_size=self._vocab_size):
                    _LOG.warning("%s", finding)
        limit = self._guard.limit
        result = self._step.run(batch, wants_stop=wants_stop, loss_limit=limit)
        self._counters.add(result, self._config.global_batch_size)
        if result.is_applied:
            self._guard.add(result.loss_sum / result.tokens)
            self._counters.spike_losses = self._guard.losses
        self._timed_tokens += result.tokens if result.is_applied else 0
        if self._is_first and self._counters.step == 1 and self._vocab_size is not None and result.tokens:
            for finding in check_first_loss(result.loss_sum / result.tokens, self._vocab_size):
                _LOG.warning("%s", finding)
        self._is_first, self._result = False, result
        if not result.is_applied:
            self._refuse_or_warn(batch, result, limit)
        self._bar.advance()
        return result

    def _rehearse(self, batch: Mapping[str, np.ndarray[Any, Any]]) -> None:
        found = rehearse(self._step, batch, vocab_size=self._vocab_size, is_fresh=self._counters.step == 0)
        for line in found.lines():
            self._bar.say(line)
        require_sound(found)

    def go_back(self) -> None:
        """Goes on from counters that were set back to an earlier step."""
        self._guard = SpikeGuard(self._config, self._counters.spike_losses)
        for each in (self._metrics, *self._mirrors, self._bar):
            if each is not None:
                each.rewind(self._counters.step)
        self._watch = Watch(self._metrics.lines if self._metrics is not None else ())
        self._start, self._start_step, self._timed_tokens = self._clock(), self._counters.step, 0

    def _refuse_or_warn(self, batch: Mapping[str, np.ndarray[Any, Any]], result: StepResult, limit: float) -> None:
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
        if result.is_spike:
            text += f"; a spike: the limit was {limit:.6g} (train.spike_deviations)"
        elif result.tokens and self._explain is not None:
            text += f"; {self._explain(batch, result)}"
            self._explain = None
        if counters.skipped_in_row >= self._config.max_skipped_steps:
            raise DivergenceError(
                f"{text}; {counters.skipped_in_row} in a row (train.max_skipped_steps), the run stops;"
                " lower the learning rate, lengthen the warm-up, or look at these samples"
            )
        _LOG.warning("%s", text)

    def report(
        self,
        source: BatchSource,
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

    def _log(self, source: BatchSource) -> None:
        counters, result = self._counters, self._result
        assert result is not None
        elapsed = self._clock() - self._start
        speed = self._timed_tokens / elapsed if elapsed > 0 else None
        line: dict[str, Any] = {
            "kind": "train",
            "step": counters.step,
            "samples": counters.samples,
            "tokens": counters.tokens,
            "loss": counters.window_loss / counters.window_tokens if counters.window_tokens else None,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            "loss_scale": result.loss_scale,
            "tokens_per_second": speed,
            "data_wait": min(source.waited / elapsed, 1.0) if elapsed > 0 else 0.0,
            "mfu": self._utilization(speed) if speed is not None else None,
            "skipped_steps": counters.skipped_steps,
        }
        if result.auxiliary_loss is not None:
            line["auxiliary_loss"] = result.auxiliary_loss
        line = self._write(line)
        self.loss = line["loss"]
        steps = counters.step - self._start_step
        left = (self._config.steps - counters.step) * elapsed / steps if steps else None
        self._bar.show(line, left)
        counters.window_loss, counters.window_tokens = 0.0, 0
        self._start, self._start_step, self._timed_tokens, source.waited = self._clock(), counters.step, 0, 0.0

    def _evaluate(self, evaluate: Callable[[], Evaluation]) -> None:
        start, step = self._clock(), self._counters.step
        if self.evaluation is None:
            self._bar.say(Evaluation.definition())
        with self._weights():
            found = self.evaluation = evaluate()
        line = {
            "kind": "evaluation",
            "step": step,
            "samples": self._counters.samples,
            "loss": found.loss,
            "perplexity": found.perplexity,
            "tokens": found.tokens,
            "seconds": self._clock() - start,
        }
        bits = ""
        if found.bits_per_byte is not None:
            line["bits_per_byte"] = found.bits_per_byte
            bits = f"  bits per byte {found.bits_per_byte:.4f}"
        self._bar.say(
            f"step {step}  evaluation: loss {found.loss:.4f}  perplexity {found.perplexity:.2f}{bits}"
            f"  ({found.tokens:,} tokens)"
        )
        self._write(line)

    def _sample(self, sample: Callable[[], Iterable[tuple[str, str]]]) -> None:
        if self._metrics is None:
            return
        with self._weights(), evaluation_mode(self._step.model):
            for prompt, text in sample():
                self._bar.say(f"step {self._counters.step}  sample: {prompt!r} -> {text!r}")
                self._write({"kind": "sample", "step": self._counters.step, "prompt": prompt, "text": text})

    def _weights(self) -> AbstractContextManager[None]:
        return self._step.averaged() if self._config.evaluate_ema else nullcontext()

    def _write(self, line: dict[str, Any]) -> dict[str, Any]:
        if self._metrics is None:
            return line
        written = self._metrics.write(line)
        for mirror in self._mirrors:
            mirror.write(written)
        if warning := self._watch.look(written):
            _LOG.warning("step %d: %s", written["step"], warning)
        return written
