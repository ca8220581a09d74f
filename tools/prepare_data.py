"""Prepares a run's data: text, tokenizer, and a training and a validation dataset that share no document."""

from pathlib import Path

import click
import ms_dataprep
from ms_dataprep.config import TokenizerConfig
from run_config import RunConfig, RunConfigError, load_run_config
from system_text import write_system_text
from tool_command import ToolCommand, config_options


def prepare_text(config: RunConfig) -> list[str]:
    """Returns the paths of the run's text; collects the Python installation's own English first when asked to."""
    run = config.run
    if run.text is None:
        raise RunConfigError("run.text: missing; name text files or folders, or `system` for this Python's own English")
    if run.text != "system":
        return [run.text] if isinstance(run.text, str) else list(run.text)
    corpus = run.path / "text" / "corpus.jsonl"
    if not corpus.exists():
        write_system_text(corpus, run.text_megabytes)
    return [str(corpus)]


def prepare_tokenizer(config: RunConfig, inputs: list[str]) -> ms_dataprep.Tokenizer:
    """Returns the run's tokenizer; trains one of the model's vocabulary size when there is none."""
    run = config.run
    if not run.tokenizer_path.exists():
        if run.tokenizer:
            raise RunConfigError(
                f"run.tokenizer: {run.tokenizer} does not exist; leave the key out to train a tokenizer"
            )
        size = TokenizerConfig(vocab_size=config["model"]["vocab_size"])
        ms_dataprep.train_tokenizer(inputs, run.tokenizer_path, size)
    return ms_dataprep.load_tokenizer(run.tokenizer_path)


def prepare_dataset(config: RunConfig, inputs: list[str], part: str) -> Path:
    """Builds the `train` or `validation` dataset unless it is there; returns its folder."""
    run = config.run
    folder = run.train_path if part == "train" else run.validation_path
    if not (folder / "dataset.json").exists():
        data = config.read("data", part=part)
        ms_dataprep.build(inputs, folder, tokenizer=run.tokenizer_path, config=data)
    return folder


def prepare(config: RunConfig) -> None:
    """Makes what the run lacks; what is there is left as it is."""
    inputs = prepare_text(config)
    prepare_tokenizer(config, inputs)
    for part in ("train", "validation"):
        prepare_dataset(config, inputs, part)


@click.command(cls=ToolCommand, help=__doc__)
@config_options
@click.option("--input", "inputs", multiple=True, help="Text to use in place of the config's; may repeat.")
def main(config_path: Path, changes: tuple[str, ...], inputs: tuple[str, ...]) -> None:
    config = load_run_config(config_path, changes)
    if inputs:
        config.sections["run"]["text"] = list(inputs)
    prepare(config)
    click.echo(f"training data {config.run.train_path}, validation data {config.run.validation_path}")


if __name__ == "__main__":
    main()
