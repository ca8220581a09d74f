"""Prepares a run's data: text, tokenizer, and a training and a validation dataset that share no document."""

import json
from pathlib import Path
from typing import Any

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


def check_prepared(config: RunConfig, *, is_text_compared: bool) -> None:
    """Refuses options with which the data in the run's folder were not made; they would be ignored silently."""
    path = config.run.path / "prepared.json"
    if not path.exists():
        return
    made, asked = json.loads(path.read_text(encoding="utf-8")), _preparation(config)
    compared = [key for key in asked if is_text_compared or not key.startswith("run.text")]
    if differing := [key for key in compared if asked[key] != made.get(key)]:
        found = "; ".join(f"{key}: {asked[key]!r}, prepared with {made.get(key)!r}" for key in differing)
        raise RunConfigError(
            f"{path.parent}: its data were prepared with other options: {found}; use another run.folder"
        )


def prepare(config: RunConfig) -> None:
    """Makes what the run lacks; what is there is left as it is. Refuses data made with other options."""
    check_prepared(config, is_text_compared=True)
    inputs, run = prepare_text(config), config.run
    data, is_evaluated = config.read("data"), bool(config.read("train").evaluate_every)
    is_split = data.validation_share > 0
    if not is_split and is_evaluated and not (run.validation_path / "dataset.json").exists():
        raise RunConfigError(
            f"data.validation_share: 0 leaves nothing for {run.validation_path}; give e.g. 0.03, name a dataset in "
            "run.validation_dataset, or set train.evaluate_every=0"
        )
    prepare_tokenizer(config, inputs)
    path = run.path / "prepared.json"
    path.write_text(json.dumps(_preparation(config), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for part in ("train", "validation") if is_split else ("train",):
        prepare_dataset(config, inputs, part)


def _preparation(config: RunConfig) -> dict[str, Any]:
    run = config.run
    text = list(run.text) if isinstance(run.text, tuple) else run.text
    chosen = {"run.text": text, "run.tokenizer": run.tokenizer, "model.vocab_size": config["model"]["vocab_size"]}
    if text == "system":
        chosen["run.text_megabytes"] = run.text_megabytes
    return chosen | {f"data.{key}": value for key, value in config["data"].items()}


@click.command(cls=ToolCommand, help=__doc__)
@config_options
@click.option("--input", "inputs", multiple=True, help="Text to use in place of the config's; may repeat.")
def main(config_path: Path, changes: tuple[str, ...], inputs: tuple[str, ...]) -> None:
    config = load_run_config(config_path, changes)
    if inputs:
        config.sections["run"]["text"] = list(inputs)
    prepare(config)
    run = config.run
    made = [path for path in (run.train_path, run.validation_path) if (path / "dataset.json").exists()]
    click.echo(f"datasets: {', '.join(map(str, made))}; tokenizer: {run.tokenizer_path}")


if __name__ == "__main__":
    main()
