"""The command `ms-gptmodel`."""

import json
from pathlib import Path

import click

from ms_gptmodel.__about__ import __version__
from ms_gptmodel.config import ModelConfig, load_config
from ms_gptmodel.errors import ConfigError, GptModelError, InputError
from ms_gptmodel.presets import PRESETS, preset


class _Commands(click.Group):
    """Turns expected errors into one line and exit code 1; `--debug` shows the traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (GptModelError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """GPT- and Llama-style language models for MindSpore, readable like the paper."""


@main.command("describe")
@click.argument("model")
@click.option("--seq-length", default=0, help="Positions of a row.  [default: the model's]")
@click.option("--batch-size", default=1, show_default=True, help="Sequences in the cache.")
@click.option("--dtype", default="float32", show_default=True, help="float32, float16 or bfloat16.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of the table.")
def describe_command(model: str, seq_length: int, batch_size: int, dtype: str, as_json: bool) -> None:
    """Parameters, FLOPs and memory of MODEL: a config.json, its folder, or the name of a preset."""
    from ms_gptmodel.description import DescriptionConfig, describe, description_table

    use = DescriptionConfig(seq_length=seq_length, batch_size=batch_size, dtype=dtype)
    description = describe(_find_config(model), use)
    click.echo(json.dumps(description, indent=2, allow_nan=False) if as_json else description_table(description))


@main.command("generate")
@click.argument("model_dir", type=click.Path(path_type=Path))
@click.option("--prompt-ids", "prompts", multiple=True, required=True, help="Ids of a prompt, 1,2,3; repeatable.")
@click.option("--max-new-tokens", default=64, show_default=True, help="New ids a prompt gets at most.")
@click.option("--temperature", default=0.0, show_default=True, help="0 takes the most likely id every time.")
@click.option("--top-k", default=0, show_default=True, help="Draw from the k most likely ids; 0: from all.")
@click.option("--top-p", default=1.0, show_default=True, help="Draw from the ids that reach this probability.")
@click.option("--seed", default=0, show_default=True, help="Of the draws.")
def generate_command(
    model_dir: Path,
    prompts: tuple[str, ...],
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
) -> None:
    """Continue prompts with the model in MODEL_DIR (config.json and model.safetensors with contract names).

    Prints one JSON object a prompt: its new ids and why they ended.
    """
    from ms_gptmodel.sampling import GenerationConfig

    options = GenerationConfig(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    ids = [_parse_ids(prompt) for prompt in prompts]
    config = load_config(model_dir)
    import mindspore  # seconds: after everything that can be refused at once

    from ms_gptmodel.cache import CachedDecoder
    from ms_gptmodel.generation import generate
    from ms_gptmodel.model import LanguageModel
    from ms_gptmodel.weights import load_weights, read_weights

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    arrays = read_weights(model_dir / "model.safetensors")
    model = LanguageModel(config)
    load_weights(model, arrays)
    max_length = min(config.max_position_embeddings, max(map(len, ids)) + max_new_tokens)
    decoder = CachedDecoder(model, slots=len(ids) + 1, max_length=max_length)
    for result in generate(decoder, ids, options):
        click.echo(json.dumps({"ids": list(result.ids), "finish_reason": result.finish_reason}))


def _find_config(model: str) -> ModelConfig:
    if model in PRESETS:
        return preset(model)
    if not Path(model).exists():
        raise ConfigError(f"{model}: neither a file nor a preset; presets: {', '.join(PRESETS)}")
    return load_config(model)


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"--prompt-ids {text!r}: expected integers with commas between, as in 1,2,3") from error
