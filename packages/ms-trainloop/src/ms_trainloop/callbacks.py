"""Callbacks in MindSpore's convention: metrics, evaluation and forensics inside the stock `mindspore.Model.train`.

For `dataset_sink_mode=False`: with data sinking a callback sees neither batches nor single steps. The network that
`Model` trains takes the columns of the data set in their order, by default those of contract `batch`.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import ParameterTuple, nn
from mindspore.train import Callback

from ms_trainloop.diagnosis import is_finite, locate
from ms_trainloop.errors import ConfigError
from ms_trainloop.evaluation import Evaluation
from ms_trainloop.forensics import describe
from ms_trainloop.metrics import MetricsFile
from ms_trainloop.model_state import write

_LOG = logging.getLogger(__name__)
FORMAT, VERSION = "ms-trainloop.callback-forensics", 1


class MetricsCallback(Callback):  # type: ignore[misc]  # MindSpore has no type information
    """Writes `metrics.jsonl` of contract `metrics`: `grad_norm` and `mfu` are null, which a stock step does not tell.

    `loss` is the mean of the steps' losses since the last line, weighted by their labels: exact where the network's
    loss is the mean over labels that are not -100. The file goes on where a run with `initial_epoch` begins.
    """

    def __init__(
        self, run_dir: Path, *, log_every: int = 10, labels_at: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Writes into `run_dir` every `log_every` steps; `labels_at` is the column of the labels, from 0."""
        if log_every < 1:
            raise ConfigError(f"log_every: found {log_every}, expected 1 or more")
        super().__init__()
        self._run_dir, self._every, self._labels_at, self._clock = Path(run_dir), log_every, labels_at, clock
        self._file: MetricsFile | None = None

    def on_train_begin(self, run_context: Any) -> None:
        """Opens the file."""
        _require_steps(run_context)
        step = int(run_context.original_args().initial_step or 0)
        self._file = MetricsFile(self._run_dir, step=step)
        lines = [line for line in self._file.lines if line["kind"] == "train"]
        last = lines[-1] if lines else {"samples": 0, "tokens": 0, "skipped_steps": 0}
        self._samples, self._tokens, self._skipped = (last[key] for key in ("samples", "tokens", "skipped_steps"))
        self._start = self._asked = self._clock()
        self._empty_window()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Notes how long the batch took, and the rate of the step."""
        self._waited += self._clock() - self._asked
        optimizer = run_context.original_args().optimizer
        self._rate = _rate_of(optimizer)

    def on_train_step_end(self, run_context: Any) -> None:
        """Counts the step, and writes a line if it is due."""
        found = run_context.original_args()
        loss, is_skipped, scale = _outcome(found.net_outputs)
        labels = found.train_dataset_element[self._labels_at].asnumpy()
        tokens = int((labels >= 0).sum())
        self._samples += len(labels)
        self._skipped += is_skipped
        if not is_skipped:
            self._tokens += tokens
            self._window_tokens += tokens
        self._window_loss += loss * tokens
        self._window_labels += tokens
        if found.cur_step_num % self._every == 0:
            self._write_line(found.cur_step_num, scale)
        self._asked = self._clock()

    def on_train_end(self, run_context: Any) -> None:
        """Writes what is left, and closes the file."""
        if self._file is None:
            return
        if self._window_labels:
            found = run_context.original_args()
            self._write_line(found.cur_step_num, _outcome(found.net_outputs)[2])
        self._file.__exit__(None, None, None)
        self._file = None

    def write_evaluation(self, step: int, found: Evaluation, seconds: float) -> None:
        """Writes an evaluation line; its time does not count for the speed."""
        assert self._file is not None, "an EvaluationCallback stands after its MetricsCallback in the list"
        line = {
            "kind": "evaluation", "step": step, "samples": self._samples, "loss": found.loss,
            "perplexity": found.perplexity, "tokens": found.tokens, "seconds": seconds,
        }  # fmt: skip
        if found.bits_per_byte is not None:
            line["bits_per_byte"] = found.bits_per_byte
        self._file.write(line)
        self._start += seconds
        self._asked = self._clock()

    def _write_line(self, step: int, scale: float) -> None:
        assert self._file is not None
        elapsed = self._clock() - self._start
        self._file.write(
            {
                "kind": "train", "step": step, "samples": self._samples, "tokens": self._tokens,
                "loss": self._window_loss / self._window_labels if self._window_labels else None, "grad_norm": None,
                "learning_rate": self._rate, "loss_scale": scale,
                "tokens_per_second": self._window_tokens / elapsed if elapsed > 0 else None,
                "data_wait": min(self._waited / elapsed, 1.0) if elapsed > 0 else 0.0, "mfu": None,
                "skipped_steps": self._skipped,
            }
        )  # fmt: skip
        self._empty_window()

    def _empty_window(self) -> None:
        self._start = self._clock()
        self._waited, self._window_loss = 0.0, 0.0
        self._window_tokens = self._window_labels = 0


class EvaluationCallback(Callback):  # type: ignore[misc]  # MindSpore has no type information
    """Evaluates every `every` steps and at the end; keeps every Evaluation in `evaluations`, by step."""

    def __init__(
        self, evaluate: Callable[[], Evaluation], *, every: int, metrics: MetricsCallback | None = None
    ) -> None:
        """Calls `evaluate`, such as `lambda: Evaluator(model)(batches)`.

        Args:
            evaluate: Gives an Evaluation of the model as it is now.
            every: Steps between two evaluations.
            metrics: Writes them into its file; it stands before this one in the list of callbacks.
        """
        if every < 1:
            raise ConfigError(f"every: found {every}, expected 1 or more")
        super().__init__()
        self._evaluate, self._every, self._metrics = evaluate, every, metrics
        self.evaluations: dict[int, Evaluation] = {}

    def on_train_step_end(self, run_context: Any) -> None:
        """Evaluates if this step is due for it."""
        found = run_context.original_args()
        is_last = found.cur_step_num == int(found.initial_step or 0) + found.epoch_num * found.batch_num
        if found.cur_step_num % self._every and not is_last:
            return
        start = time.perf_counter()
        evaluation = self.evaluations[found.cur_step_num] = self._evaluate()
        if self._metrics is not None:
            self._metrics.write_evaluation(found.cur_step_num, evaluation, time.perf_counter() - start)
        _LOG.info("step %d: evaluation loss %.6g", found.cur_step_num, evaluation.loss)


class ForensicsCallback(Callback):  # type: ignore[misc]  # MindSpore has no type information
    """Records the first step that leaves a loss or a weight that is not finite, undoes it, and ends the training.

    The folder `run_dir/forensics/step-NNNNNNNN` holds `batch.npz` (the columns, `column_0` ...), `state.npz` (weights
    and optimizer states before the step) and `report.json` (step, loss, rate, and where the numbers stopped being
    finite: cell and source line forward, cell backward, gradient norms by parameter). It costs a copy of weights and
    states, and a look at every weight, in each step.

    Attributes:
        folder: Of the record; None while all was finite.
    """

    def __init__(self, run_dir: Path, network: nn.Cell) -> None:
        """Watches `network`, the Cell that maps the columns to the loss; a loss scale of Model's own is left alone."""
        super().__init__()
        self._run_dir, self._network = Path(run_dir), network
        self._before: list[tuple[Any, np.ndarray[Any, Any]]] = []
        self.folder: Path | None = None

    def on_train_begin(self, run_context: Any) -> None:
        """Refuses data sinking, and a Model without an optimizer."""
        _require_steps(run_context)

    def on_train_step_begin(self, run_context: Any) -> None:
        """Copies what the step may change."""
        found = run_context.original_args()
        self._rate = _rate_of(found.optimizer)
        owned = {id(p): p for cell in (self._network, found.optimizer) for p in cell.get_parameters()}
        self._before = [(parameter, np.array(parameter.asnumpy())) for parameter in owned.values()]

    def on_train_step_end(self, run_context: Any) -> None:
        """Looks at the loss and the weights."""
        found = run_context.original_args()
        loss, is_skipped, scale = _outcome(found.net_outputs)
        if is_skipped:
            return
        broken = [p.name for p in self._network.trainable_params() if not is_finite(p)]
        if np.isfinite(loss) and not broken:
            return
        for parameter, value in self._before:
            write(parameter, value)
        inputs = found.train_dataset_element
        diagnosis = locate(_Objective(self._network), self._network, inputs)
        self.folder = self._run_dir / "forensics" / f"step-{found.cur_step_num:08d}"
        report = {
            "format": FORMAT, "version": VERSION, "step": found.cur_step_num,
            "loss": loss if np.isfinite(loss) else None, "learning_rate": self._rate, "loss_scale": scale,
            "weights_after": broken, "diagnosis": diagnosis,
        }  # fmt: skip
        self._record(self.folder, report, inputs)
        for parameter, value in self._before:  # counters that the diagnosis moved on
            write(parameter, value)
        _LOG.warning(
            "step %d: loss %g; %s; recorded in %s; the step is undone and the training ends",
            found.cur_step_num, loss, describe(diagnosis), self.folder,
        )  # fmt: skip
        run_context.request_stop()

    def _record(self, folder: Path, report: dict[str, Any], inputs: Any) -> None:
        staged = folder.with_name(f".{folder.name}.tmp")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        np.savez(staged / "batch.npz", **{f"column_{i}": column.asnumpy() for i, column in enumerate(inputs)})
        np.savez(staged / "state.npz", **{parameter.name: value for parameter, value in self._before})
        with (staged / "report.json").open("w", encoding="utf-8") as file:
            json.dump(report, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        staged.rename(folder)


class _Objective(nn.Cell):  # type: ignore[misc]  # MindSpore has no type information
    """Gives the loss twice: the first is differentiated."""

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.model = network

    def construct(self, *columns: Any) -> Any:
        loss = self.model(*columns)
        return loss, loss


def _require_steps(run_context: Any) -> None:
    found = run_context.original_args()
    if found.dataset_sink_mode:
        raise ConfigError("Model.train: dataset_sink_mode is true, of which callbacks see no step; set it to False")
    if found.optimizer is None:
        raise ConfigError("Model: found no optimizer; give Model(network, optimizer=...), whose rate is recorded")


def _outcome(outputs: Any) -> tuple[float, bool, float]:
    """Loss, whether the step was dropped, and the loss scale, of a stock training cell's outputs."""
    if not isinstance(outputs, tuple | list):
        return float(outputs.asnumpy()), False, 1.0
    overflow = bool(np.all(outputs[1].asnumpy())) if len(outputs) > 1 else False
    scale = float(outputs[2].asnumpy()) if len(outputs) > 2 else 1.0
    return float(outputs[0].asnumpy()), overflow, scale


def _rate_of(optimizer: Any) -> float:
    """The rate of the next step of a stock optimizer; of parameter groups the first's."""
    rate = optimizer.get_lr()
    return float((rate[0] if isinstance(rate, tuple | list | ParameterTuple) else rate).asnumpy())
