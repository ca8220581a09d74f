"""The command `ms-weightconv`."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ms_weightconv.__about__ import __version__
from ms_weightconv.errors import WeightConvError

if TYPE_CHECKING:
    from ms_weightconv.family import Family

_PATH = click.Path(path_type=Path)


class _Commands(click.Group):
    """Turns expected errors into one line and exit code 1; `--debug` shows the traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (WeightConvError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Hugging Face checkpoints to MindSpore and back, proven tensor by tensor."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")


@main.command()
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@click.option(
    "--to",
    type=click.Choice(["huggingface", "mindspore", "mindformers", "checkpoint"]),
    required=True,
    help="Layout to write.",
)
@click.option("--family", help="Family to read (unknown model_type) or to write; see `list`.")
@click.option("--table", type=_PATH, help="A table of your own, in place of a family.")
@click.option("--infer", is_flag=True, help="Propose a table for SOURCE, write it to TARGET.table.json and stop.")
@click.option("--dtype", help="Cast to fp32, fp16, bf16 or fp64; without it every word is kept.")
@click.option("--max-shard-size", default="5GB", show_default=True, help="Size of a Hugging Face shard.")
@click.option(
    "--file-format",
    type=click.Choice(["safetensors", "ckpt"]),
    default="safetensors",
    help="With --to mindspore or mindformers.",
)
@click.option("--naming", help="MindFormers' layout: mcore, mcore-stacked, mcore-apart, wq or wq-fused.")
@click.option("--workers", type=int, help="Threads; default: one a core, at most 4.")
@click.option("--config", type=_PATH, help="config.json of contract model, for a checkpoint that has none.")
@click.option("--tokenizer", type=_PATH, help="tokenizer.json or a folder, instead of the source's tokenizer files.")
@click.option("--pad-vocab-to-multiple-of", type=int, help="Zeros behind the last id (to mindspore, checkpoint).")
@click.option("--overwrite", is_flag=True, help="Replace a model's folder once the new one is complete.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def convert(
    source: Path,
    target: Path,
    to: str,
    family: str | None,
    table: Path | None,
    infer: bool,
    dtype: str | None,
    max_shard_size: str,
    file_format: str,
    naming: str | None,
    workers: int | None,
    config: Path | None,
    tokenizer: Path | None,
    pad_vocab_to_multiple_of: int | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Convert SOURCE (Hugging Face folder, model folder or checkpoint) into the folder TARGET."""
    from ms_weightconv.conversion import convert as run

    if infer:
        _propose(source, target)
        return
    report = run(
        source,
        target,
        to=to,
        family=_family(family, table),
        dtype=dtype,
        max_shard_size=max_shard_size,
        file_format=file_format,
        naming=naming,
        workers=workers,
        overwrite=overwrite,
        config=config,
        tokenizer=tokenizer,
        pad_vocab_to_multiple_of=pad_vocab_to_multiple_of,
    )
    click.echo(json.dumps(report.as_dict(), indent=2) if as_json else "\n".join(report.lines()))


def _family(name: str | None, table: Path | None) -> "str | Family | None":
    if table is None:
        return name
    from ms_weightconv.tablefile import read_table

    if name is not None:
        raise click.UsageError("give --family or --table, not both")
    return read_table(table)


def _propose(source: Path, target: Path) -> None:
    from ms_weightconv.inference import propose_table
    from ms_weightconv.target import write_document

    table = propose_table(source)
    path = target.with_name(f"{target.name}.table.json")
    if path.exists():
        raise click.UsageError(f"{path} exists; look at it, or remove it")
    write_document(path, table)
    for rule in table["rules"]:
        ours = rule.get("ours", f"left out: {rule.get('dropped_because')}")
        steps = f"  [{', '.join(rule['steps'])}]" if "steps" in rule else ""
        click.echo(f"{rule['theirs']} -> {ours if isinstance(ours, str) else ', '.join(ours)}{steps}")
    for name in table["unresolved"]:
        click.echo(f"not understood: {name}")
    click.echo(f"{path}: a proposal. Look at every line, resolve what is not understood, set confirmed to true, then")
    click.echo(f"convert with --table {path} and prove the result with logits.")


@main.command()
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@click.option("--family", help="Family of a Hugging Face folder whose model_type is unknown.")
@click.option("--config", type=_PATH, help="config.json of contract model, for a checkpoint that has none.")
@click.option("--table", type=_PATH, help="A table of your own, in place of a family.")
@click.option("--naming", help="MindFormers' layout, where a folder does not say it.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def prove(
    source: Path,
    target: Path,
    family: str | None,
    table: Path | None,
    config: Path | None,
    naming: str | None,
    as_json: bool,
) -> None:
    """Prove that TARGET holds SOURCE's model: configs, names, shapes, every word, and the way there and back."""
    from ms_weightconv.proof import prove as run

    report = run(source, target, family=_family(family, table), config=config, naming=naming)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        click.echo("\n".join([*report.lines(), f"proven: {report.num_tensors} tensors equal word for word"]))


@main.command()
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@click.option("--to", type=click.Choice(["huggingface", "mindspore"]), required=True, help="Names to write.")
@click.option("--base", type=_PATH, required=True, help="Folder of the base model; only its config.json is read.")
@click.option("--family", help="Family of a base model whose model_type is unknown.")
@click.option("--table", type=_PATH, help="A table of your own, in place of a family.")
@click.option("--overwrite", is_flag=True, help="Replace a folder at TARGET.")
def adapter(
    source: Path, target: Path, to: str, base: Path, family: str | None, table: Path | None, overwrite: bool
) -> None:
    """Convert a LoRA adapter in PEFT's files between transformers' names and those of contract model."""
    from ms_weightconv.adapter import convert_adapter

    values = convert_adapter(source, target, to=to, base=base, family=_family(family, table), overwrite=overwrite)
    click.echo(f"{target}: {len(values['target_modules'])} target modules, rank {values['r']}")


@main.command("list")
@click.argument("family", required=False)
def list_families(family: str | None) -> None:
    """List the families, or the rules and config keys of one FAMILY."""
    from ms_weightconv.families import FAMILIES, find_family
    from ms_weightconv.mindformers import NAMINGS

    if family is None:
        for each in FAMILIES.values():
            click.echo(f"{each.name}: {each.architecture}, {len(each.rules)} rules, {len(each.fields)} config keys")
        for each in NAMINGS.values():
            click.echo(f"{each.name}: a layout of MindFormers, {len(each.rules)} rules")
        return
    chosen = NAMINGS[family] if family in NAMINGS else find_family(family, None, "list")
    click.echo("\n".join(map(str, chosen.rules)))
    for line in chosen.fields:
        click.echo(f"config {', '.join(line.their_keys)} -> {', '.join(line.our_keys)}")
    for limit in chosen.limits:
        click.echo(f"config {limit.key} must be {' or '.join(map(repr, limit.allowed))}, else {limit.reason}")
