"""Exports a run's newest checkpoint as a bundle and checks that the graphs give the model's logits."""

from dataclasses import asdict
from pathlib import Path

import click
from run_config import load_run_config
from tool_command import ToolCommand, config_options


@click.command(cls=ToolCommand, help=__doc__)
@config_options
@click.option("--output", type=click.Path(path_type=Path), help="The bundle's folder; default: `bundle` in the run's.")
@click.option("--step", type=int, help="Checkpoint to export; default: the newest valid one.")
@click.option("--overwrite", is_flag=True, help="Replace an existing bundle once the new one is complete.")
def main(config_path: Path, changes: tuple[str, ...], output: Path | None, step: int | None, overwrite: bool) -> None:
    config = load_run_config(config_path, changes)

    import mindspore
    import ms_dataprep
    import ms_export
    import ms_gptmodel
    from trained_model import load_trained_model

    export = config.read("export")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    trained = load_trained_model(config, step)
    tokenizer = ms_dataprep.load_tokenizer(config.run.train_path / "tokenizer.json")
    decoder = ms_gptmodel.CachedDecoder(trained.model, slots=export.slots, max_length=export.max_length)
    folder = ms_export.build(
        output or config.run.path / "bundle",
        model=ms_export.CachedModel(
            prefill=decoder.prefill_cell(),
            decode=decoder.decode_cell,
            weights=ms_gptmodel.named_parameters(trained.model),
            cache=decoder.cache_parameters,
            slots=export.slots,
            max_length=export.max_length,
            config=asdict(trained.config),
        ),
        config=export,
        tokenizer=tokenizer.path,
        tokenizer_kind=tokenizer.kind,
        tokenizer_fingerprint=tokenizer.fingerprint,
        overwrite=overwrite,
    )
    found = ms_export.check(folder)
    click.echo(f"{folder}: step {trained.step}, logits differ by {found.max_abs_difference:.2e} at most")


if __name__ == "__main__":
    main()
