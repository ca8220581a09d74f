"""Evaluates a run's newest checkpoint: token-weighted loss and perplexity of a dataset."""

import json
from pathlib import Path

import click
from run_config import load_run_config
from tool_command import ToolCommand, config_options


@click.command(cls=ToolCommand, help=__doc__)
@config_options
@click.option(
    "--dataset", type=click.Path(path_type=Path), help="Dataset folder; default: the run's validation dataset."
)
@click.option("--step", type=int, help="Checkpoint to evaluate; default: the newest valid one.")
@click.option("--batch-size", default=8, show_default=True, help="Rows a batch; the result does not depend on it.")
def main(config_path: Path, changes: tuple[str, ...], dataset: Path | None, step: int | None, batch_size: int) -> None:
    config = load_run_config(config_path, changes)

    import mindspore
    import ms_dataprep
    import ms_trainloop
    from trained_model import load_trained_model

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    trained = load_trained_model(config, step)
    data = ms_dataprep.load(
        dataset or config.run.validation_path, batch_size=batch_size, evaluation=True,
        tokenizer_fingerprint=trained.config.tokenizer_fingerprint, vocab_size=trained.config.vocab_size,
    )  # fmt: skip
    found = ms_trainloop.evaluate(trained.model, data)
    click.echo(
        json.dumps({"step": trained.step, "loss": found.loss, "perplexity": found.perplexity, "tokens": found.tokens})
    )


if __name__ == "__main__":
    main()
