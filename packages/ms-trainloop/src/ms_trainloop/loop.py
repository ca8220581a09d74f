"""The training loop: batches in, metrics, evaluations, samples and checkpoints out, until the last step or a signal."""

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from ms_trainloop.errors import Interrupted
from ms_trainloop.evaluation import Evaluation
from ms_trainloop.keeper import Keeper
from ms_trainloop.metrics import MetricsFile
from ms_trainloop.plan import write_plan
from ms_trainloop.progress import Progress
from ms_trainloop.resume import Checkpointer, Counters
from ms_trainloop.run import Run
from ms_trainloop.signals import StopRequest, StopSignal
from ms_trainloop.source import Batches, BatchSource
from ms_trainloop.step import StepResult, TrainStep
from ms_trainloop.tensorboard import EventFiles
from ms_trainloop.wandb_run import WandbRun


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
    flops_per_token: float | None = None,
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
        flops_per_token: Of forward and backward; gives `mfu` where the peak is known, see mfu.py.
        rank: This process's number; rank 0 writes.
        stop_after: Saves and returns after this many steps of the run (not of this call).
        progress: Stream for the bar or the lines; None is silent.
        clock: Seconds, for the speed.

    Raises:
        Interrupted: SIGTERM or SIGINT came or `max_minutes` are over; the step was finished and the state saved.
            `code` is the exit code.
        BatchError: The first batch breaks the contract, or the batches ended early.
        DivergenceError: `max_skipped_steps` steps in a row were not finite; nothing was saved after the last save.
        ResumeError: The saved state does not fit.
    """
    counters, settings = Counters(), step.config
    keeper = Keeper(
        step=step,
        run_dir=run_dir,
        checkpointer=checkpointer,
        samples_per_epoch=samples_per_epoch,
        tokenizer_fingerprint=tokenizer_fingerprint,
        config=config,
        rank=rank,
        is_saved_by_every_rank=is_saved_by_every_rank,
        counters=counters,
    )
    resumed_from = keeper.resume()
    last = min(settings.steps, stop_after if stop_after is not None else settings.steps)
    with ExitStack() as stack:
        metrics: MetricsFile | None = None
        mirrors: list[EventFiles | WandbRun] = []
        if rank == 0:
            write_plan(run_dir, settings)
            metrics = stack.enter_context(MetricsFile(run_dir, step=counters.step))
            if settings.tensorboard:
                mirrors.append(EventFiles(run_dir, step=counters.step))
            if settings.wandb != "off":
                shown = {"train": asdict(settings), **(config or {})}
                mirrors.append(WandbRun(run_dir, shown, mode=settings.wandb, project=settings.wandb_project))
            for mirror in mirrors:
                stack.callback(mirror.close)
        bar = Progress(progress if rank == 0 else None, steps=settings.steps, step=counters.step)
        stack.callback(bar.close)
        explain = keeper.explain if settings.forensics else None
        run = Run(step, counters, metrics, mirrors, bar, clock, vocab_size, explain, flops_per_token)
        signals = stack.enter_context(StopSignal())
        stop = StopRequest(signals, max_minutes=settings.max_minutes, clock=clock)
        source = BatchSource(batches, counters.samples, clock)

        def save() -> None:
            if metrics is not None:
                metrics.sync()
            keeper.save()

        while counters.step < last:
            result = run.take(source, wants_stop=bool(stop))
            if on_step is not None:
                on_step(counters.step, result)
            if result.is_spike and settings.spike_action == "rollback" and keeper.roll_back():
                run.go_back()
                continue
            run.report(source, evaluate, sample)
            must_stop = result.stop_votes > 0 if step.world_size > 1 else bool(stop)
            every = settings.save_every
            if must_stop or counters.step == last or (every and counters.step % every == 0):
                run.untimed(save)
            if must_stop or counters.step == last:
                keeper.settle()
            if must_stop and counters.step < settings.steps:
                saved = "state saved" if checkpointer is not None else "nothing saved: there is no checkpointer"
                message = f"interrupted by {stop.reason} after step {counters.step} of {settings.steps}; {saved}"
                raise Interrupted(message, code=stop.exit_code, step=counters.step)
    return TrainResult(
        step=counters.step,
        samples=counters.samples,
        tokens=counters.tokens,
        skipped_steps=counters.skipped_steps,
        loss=run.loss,
        evaluation=run.evaluation,
        resumed_from=resumed_from,
        is_finished=counters.step >= settings.steps,
    )
