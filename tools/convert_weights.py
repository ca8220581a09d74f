"""Converts a run's newest checkpoint to Hugging Face's layout; --prove goes back and compares every bit."""

import json
from pathlib import Path

import click
import numpy as np
from run_config import RunConfig, load_run_config
from tool_command import ToolCommand, config_options


def prove(config: RunConfig, converted: Path, scratch: Path, step: int | None) -> dict:
    """Converts back and compares: tensors bit by bit, and the logits of the trained and the returned model."""
    import mindspore
    import ms_gptmodel
    import ms_weightconv
    from trained_model import load_trained_model

    ms_weightconv.convert(converted, scratch, to="mindspore", overwrite=True)
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    trained = load_trained_model(config, step)
    returned = ms_gptmodel.LanguageModel(ms_gptmodel.load_config(scratch))
    ms_gptmodel.load_weights(returned, ms_gptmodel.read_weights(scratch / "model.safetensors"))
    before = {name: p.asnumpy() for name, p in ms_gptmodel.named_parameters(trained.model).items()}
    after = {name: p.asnumpy() for name, p in ms_gptmodel.named_parameters(returned).items()}
    ids = np.random.default_rng(0).integers(0, trained.config.vocab_size, (2, 48), dtype=np.int32)
    first, second = (model.set_train(False)(mindspore.Tensor(ids)).asnumpy() for model in (trained.model, returned))
    return {
        "step": trained.step,
        "tensors": len(before.keys() | after.keys()),
        "tensors_equal": sum(name in after and before[name].tobytes() == after[name].tobytes() for name in before),
        "max_abs_difference": max(
            float(np.abs(before[name] - after[name]).max()) for name in before.keys() & after.keys()
        ),
        "max_abs_logit_difference": float(np.abs(first - second).max()),
    }


@click.command(cls=ToolCommand, help=__doc__)
@config_options
@click.option("--output", type=click.Path(path_type=Path), help="Folder to write; default: `huggingface` in the run's.")
@click.option("--step", type=int, help="Checkpoint to convert; default: the newest valid one.")
@click.option("--overwrite", is_flag=True, help="Replace a model's folder once the new one is complete.")
@click.option(
    "--prove", "is_proven", is_flag=True, help="Convert back and compare; writes conversion.json beside the output."
)
def main(
    config_path: Path, changes: tuple[str, ...], output: Path | None, step: int | None, overwrite: bool, is_proven: bool
) -> None:
    config = load_run_config(config_path, changes)

    import ms_weightconv
    from trained_model import find_checkpoint

    options = config.read("convert")
    target = output or config.run.path / "huggingface"
    report = ms_weightconv.convert(
        find_checkpoint(config, step), target, to="huggingface", family=options.family, dtype=options.dtype,
        max_shard_size=options.max_shard_size, overwrite=overwrite, tokenizer=config.run.train_path / "tokenizer.json",
    )  # fmt: skip
    click.echo(f"{target}: {report.num_tensors} tensors, {report.num_parameters} parameters, family {report.family}")
    if is_proven:
        proof = prove(config, target, target.with_name(f"{target.name}-and-back"), step)
        target.with_name("conversion.json").write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")
        click.echo(
            f"there and back: {proof['tensors_equal']} of {proof['tensors']} tensors bit-equal, "
            f"logits differ by {proof['max_abs_logit_difference']:g} at most"
        )
        if proof["tensors_equal"] != proof["tensors"]:
            raise click.ClickException("the way there and back changed weights")


if __name__ == "__main__":
    main()
