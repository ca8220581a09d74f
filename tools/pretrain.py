"""Trains the model of a config: in one process, or in several through msrun with data parallelism."""

import sys
from pathlib import Path

import click
import ms_parallel
import prepare_data
from run_config import load_run_config
from tool_command import ToolCommand, config_options


@click.command(cls=ToolCommand, help=__doc__)
@config_options
@click.option("--workers", default=1, show_default=True, help="Processes on this machine, data-parallel.")
@click.option("--preflight", is_flag=True, help="The whole preflight first: first loss, gradients, ten undone steps.")
@click.option("--kill-after", type=int, help="End this process by SIGKILL after this step, as a crash would.")
def main(config_path: Path, changes: tuple[str, ...], workers: int, preflight: bool, kill_after: int | None) -> None:
    config = load_run_config(config_path, (*changes, "train.preflight=full") if preflight else changes)
    run = config.run
    rank = ms_parallel.current_rank()
    if rank.world_size == 1:
        prepare_data.check_prepared(config, is_text_compared=False)
        if run.text is not None and not (run.train_path / "dataset.json").exists():
            prepare_data.prepare(config)
    if workers > 1 and rank.world_size == 1:
        command = [sys.executable, *sys.argv]
        sys.exit(ms_parallel.launch(command, num_workers=workers, log_dir=run.path / "workers"))

    from ms_parallel.mindspore import AllReduceSum, init
    from training_run import TrainingRun

    if rank.world_size > 1:
        rank = init()
    training = TrainingRun(config, rank, all_reduce=AllReduceSum() if rank.world_size > 1 else None)
    result = training.train(kill_after=kill_after)
    if rank.rank == 0:
        loss = "nothing left to train" if result.loss is None else f"loss {result.loss}"
        click.echo(f"step {result.step}, {loss}; checkpoints in {run.checkpoints_path}")


if __name__ == "__main__":
    main()
