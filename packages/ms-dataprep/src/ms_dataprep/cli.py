"""The command `ms-dataprep`."""

import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from ms_dataprep.__about__ import __version__
from ms_dataprep.config import LAYOUTS, PACKINGS, QUALITIES, DataConfig, TokenizerConfig
from ms_dataprep.errors import DataprepError, UnfinishedError

_EOD_ID = click.option("--eod-id", type=int, help="Id of the end-of-document token, where the file does not tell.")
_EOD_TOKEN = click.option("--eod-token", help="The end-of-document token itself, as an alternative.")


class _Commands(click.Group):
    """Turns expected errors into one line and exit code 1; `--debug` shows the traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (DataprepError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """From raw text to verified MindRecord, and a loader that never repeats or loses a sample."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("ms_dataprep").setLevel(logging.INFO)


@main.command("build")
@click.argument("inputs", nargs=-1, required=True)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("-t", "--tokenizer", required=True, type=click.Path(path_type=Path), help="A tokenizer.json or .model.")
@click.option("--seq-length", type=int, required=True, help="Tokens a training step sees of a row.")
@click.option("--layout", type=click.Choice(LAYOUTS), default="int32", show_default=True)
@click.option("--packing", type=click.Choice(PACKINGS), default="best_fit", show_default=True)
@click.option("--text-key", multiple=True, default=["text"], show_default=True, help="Key or column of the text.")
@click.option(
    "--source-weight", multiple=True, metavar="GLOB=WEIGHT", help="How often a source's documents are written."
)
@click.option("--on-error", type=click.Choice(["skip", "fail"]), default="skip", show_default=True)
@click.option("--cleaning", type=click.Choice(["standard", "none"]), default="standard", show_default=True)
@click.option("--unicode-form", type=click.Choice(["nfc", "nfkc"]), default="nfc", show_default=True)
@click.option("--remove-html", is_flag=True, help="Remove tags, scripts and styles; resolve entities.")
@click.option("--fix-mojibake", is_flag=True, help="Repair wrongly decoded text (ftfy).")
@click.option("--fold-full-width", is_flag=True, help="Full-width letters and digits become ordinary ones.")
@click.option("--chinese-script", type=click.Choice(["keep", "simplified", "traditional"]), default="keep")
@click.option("--mask-personal-data", is_flag=True, help="E-mail, phone and ID numbers, IP addresses become tags.")
@click.option(
    "--own-step", "own_steps", multiple=True, metavar="PACKAGE.MODULE.FUNCTION", help="A cleaning step of yours."
)
@click.option("--min-characters", type=int, default=1, show_default=True, help="Shorter documents are dropped.")
@click.option("--quality", multiple=True, type=click.Choice(QUALITIES), help="A family of quality filters; may repeat.")
@click.option("--language", "languages", multiple=True, metavar="CODE", help="A language to keep; may repeat.")
@click.option("--language-threshold", type=float, default=0.65, show_default=True)
@click.option("--dedup", type=click.Choice(["exact", "near", "none"]), default="exact", show_default=True)
@click.option("--near-threshold", type=float, default=0.8, show_default=True, help="Jaccard similarity.")
@click.option("--dedup-lines", type=click.Choice(["none", "line", "paragraph"]), default="none", show_default=True)
@click.option("--min-line-characters", type=int, default=30, show_default=True)
@click.option("--heldout", multiple=True, help="Evaluation text that no document may share an n-gram with; may repeat.")
@click.option("--heldout-ngram", type=int, default=13, show_default=True)
@click.option("--lists-dropped", is_flag=True, help="Write dropped.jsonl: every dropped document with its rule.")
@click.option("--part", type=click.Choice(["all", "train", "validation"]), default="all", show_default=True)
@click.option("--validation-share", type=float, default=0.0, show_default=True)
@click.option("--add-bos", is_flag=True, help="Begin every document with the tokenizer's own begin id.")
@click.option(
    "--tokenizer-backend", type=click.Choice(["auto", "reference", "fast"]), default="auto", show_default=True
)
@click.option("--shard-megabytes", type=float, default=64.0, show_default=True, help="Text of a shard, and of a task.")
@click.option("--workers", "num_workers", type=int, default=1, show_default=True, help="Processes, or Ray actors.")
@click.option("--engine", type=click.Choice(["processes", "ray"]), default="processes", show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace a dataset, after the new one is complete.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted build.")
@_EOD_ID
@_EOD_TOKEN
def build_command(
    inputs: tuple[str, ...], output: Path, tokenizer: Path, source_weight: tuple[str, ...], **options: Any
) -> None:
    """Builds a dataset folder from text: files, folders, globs, or - for JSON lines from stdin."""
    names = {field.name for field in fields(DataConfig)}
    weights = _read_weights(source_weight)
    config = DataConfig(
        **{name: options.pop(name) for name in list(options) if name in names}, source_weights=weights or None
    )
    from ms_dataprep.pipeline import build

    try:
        manifest = build(inputs, output, tokenizer=tokenizer, config=config, **options)
    except KeyboardInterrupt as error:
        raise UnfinishedError(f"{output}: interrupted; the same command with --resume goes on from here") from error
    for reason, count in sorted(manifest.dropped.items()):
        click.echo(f"dropped {reason}: {count:,}")
    click.echo(
        f"{output}: {manifest.documents:,} documents, {manifest.tokens:,} tokens, {manifest.rows:,} rows of "
        f"{manifest.row_length}, {100 * manifest.packing['padding_share']:.2f}% padding"
    )


def _read_weights(pairs: tuple[str, ...]) -> dict[str, float]:
    weights = {}
    for pair in pairs:
        pattern, equals, weight = pair.rpartition("=")
        try:
            weights[pattern] = float(weight)
        except ValueError:
            equals = ""
        if not equals:
            raise click.BadParameter(
                f"{pair!r}: expected GLOB=WEIGHT, such as */news/*=0.5", param_hint="--source-weight"
            )
    return weights


@main.command("train-tokenizer")
@click.argument("inputs", nargs=-1, required=True)
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The tokenizer.json or .model to write."
)
@click.option("--kind", type=click.Choice(["byte_bpe", "bpe", "unigram"]), default="byte_bpe", show_default=True)
@click.option("--vocab-size", type=int, default=8192, show_default=True)
@click.option("--eod-token", default="<|endoftext|>", show_default=True)
@click.option("--min-frequency", type=int, default=2, show_default=True)
@click.option("--text-key", default="text", show_default=True)
def train_tokenizer_command(inputs: tuple[str, ...], output: Path, **options: Any) -> None:
    """Trains a tokenizer: byte-level BPE, or BPE or Unigram of SentencePiece."""
    config = TokenizerConfig(**options)
    from ms_dataprep.tokenizer_training import train_tokenizer

    tokenizer = train_tokenizer(inputs, output, config)
    click.echo(f"{output}: {tokenizer.vocab_size:,} ids, {tokenizer.fingerprint}")


@main.command("check-tokenizer")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--sample", type=click.Path(path_type=Path, exists=True), help="A UTF-8 text both encode line by line.")
@_EOD_ID
@_EOD_TOKEN
def check_tokenizer_command(
    first: Path, second: Path, sample: Path | None, eod_id: int | None, eod_token: str | None
) -> None:
    """Compares two tokenizers on probe strings and a sample; exit code 1 when they differ."""
    from ms_dataprep.tokenizer import load_tokenizer
    from ms_dataprep.tokenizer_comparison import compare_tokenizers

    one, two = (load_tokenizer(path, eod_id=eod_id, eod_token=eod_token) for path in (first, second))
    texts = sample.read_text("utf-8").splitlines() if sample else []
    differences = compare_tokenizers(one, two, texts)
    for difference in differences:
        click.echo(difference)
    if differences:
        raise click.ClickException(f"{first} and {second} tokenize differently ({len(differences)} differences)")
    click.echo(f"both tokenize alike: {one.fingerprint}")


@main.command("verify")
@click.argument("folder", type=click.Path(path_type=Path))
def verify_command(folder: Path) -> None:
    """Reads a whole dataset: hashes, counts, ids in range, one end for each document."""
    from ms_dataprep.verification import verify

    found = verify(folder)
    click.echo(
        f"{folder}: right; {found.rows:,} rows, {found.tokens:,} tokens, {found.document_ends:,} document ends, "
        f"{found.padding_tokens:,} padding ids, largest id {found.largest_id}"
    )


@main.command("inspect")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--row", type=int, default=0, show_default=True, help="The first row to show.")
@click.option("--count", type=int, default=1, show_default=True, help="How many rows to show.")
def inspect_command(folder: Path, row: int, count: int) -> None:
    """Shows decoded rows with the documents' boundaries."""
    import numpy as np

    from ms_dataprep.inspection import render_row
    from ms_dataprep.manifest import read_manifest
    from ms_dataprep.rows import Rows
    from ms_dataprep.tokenizer import load_tokenizer

    manifest = read_manifest(folder)
    if not 0 <= row < manifest.rows:
        raise click.BadParameter(f"{row}: the dataset has rows 0 to {manifest.rows - 1}", param_hint="--row")
    tokenizer = load_tokenizer(folder / manifest.tokenizer["file"], eod_id=manifest.special_ids.eod)
    numbers = np.arange(row, min(row + count, manifest.rows))
    for number, ids in zip(numbers, Rows(folder, manifest).read(numbers), strict=True):
        click.echo(f"=== row {number}")
        click.echo(render_row(ids, manifest.special_ids, tokenizer))
