"""The command `ms-ckpt`."""

import json
import math
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ms_ckpt.__about__ import __version__
from ms_ckpt.cli_rewrite import convert, merge, reshard
from ms_ckpt.errors import CkptError


class _Commands(click.Group):
    """Turns expected errors into one line and exit code 1; `--debug` shows the traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (CkptError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Checkpoints that are never torn, never trusted blindly, and load anywhere."""


@main.command("list")
@click.argument("root", type=_FOLDER)
@click.option("--quick", is_flag=True, help="Check all but the tensors' bytes.")
def list_checkpoints(root: Path, quick: bool) -> None:
    """List the checkpoints under ROOT with their validity."""
    from ms_ckpt.listing import checkpoint_folders, problem_of

    for folder in checkpoint_folders(root):
        problem = problem_of(folder, is_quick=quick)
        size = sum(file.stat().st_size for file in folder.iterdir())
        verdict = f"DAMAGED: {problem}" if problem else "whole" if quick else "valid"
        click.echo(f"{_name(folder, root)}  {_spell_size(size):>9}  {verdict}")


@main.command()
@click.argument("path", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def inspect(path: Path, as_json: bool) -> None:
    """Show tensors, their statistics and the values of PATH (a checkpoint, or a root: its newest)."""
    from ms_ckpt.folder import open_folder
    from ms_ckpt.listing import newest_valid
    from ms_ckpt.statistics import describe
    from ms_ckpt.tensor import num_bytes

    with open_folder(newest_valid(path)) as folder:
        rows = {}
        for name, stored in folder.index.tensors.items():
            figures = {key: _finite(value) for key, value in asdict(describe(folder.read(name))).items()}
            held = folder.shape_of(name)
            rows[name] = {
                "dtype": stored.dtype, "shape": list(held), "bytes": num_bytes(stored.dtype, held), **figures
            }  # fmt: skip
        if as_json:
            click.echo(json.dumps({"step": folder.step, "tensors": rows, "values": folder.values}, allow_nan=False))
            return
        part = "" if folder.index.rank is None else f", rank {folder.index.rank}'s part of {folder.index.world_size}"
        click.echo(f"{folder.path}: step {folder.step}{part}, {len(rows)} tensors")
        for name, row in rows.items():
            numbers = " ".join(f"{key} {_spell(row[key])}" for key in ("minimum", "maximum", "mean", "std"))
            warning = f"  NOT FINITE: {row['num_non_finite']}" if row["num_non_finite"] else ""
            size_text = _spell_size(int(str(row["bytes"])))
            click.echo(f"{name}  {row['dtype']} {row['shape']}  {size_text}  {numbers}{warning}")
        click.echo(f"values: {json.dumps(folder.values, indent=2, ensure_ascii=False)}")


@main.command()
@click.argument("path", type=_FOLDER)
def verify(path: Path) -> None:
    """Read every byte of PATH (a checkpoint, or all under a root); exit code 1 if one is damaged."""
    from ms_ckpt.listing import checkpoint_folders, problem_of

    folders = checkpoint_folders(path)
    problems = 0
    for folder in folders:
        problem = problem_of(folder, is_quick=False)
        problems += problem is not None
        click.echo(f"{_name(folder, path)}  {f'DAMAGED: {problem}' if problem else 'valid'}")
    if problems:
        raise CkptError(f"{problems} of {len(folders)} checkpoints are damaged")


@main.command()
@click.argument("first", type=_FOLDER)
@click.argument("second", type=_FOLDER)
def diff(first: Path, second: Path) -> None:
    """Compare two checkpoints bit by bit; exit code 1 if they differ."""
    from ms_ckpt.comparison import compare
    from ms_ckpt.folder import open_folder
    from ms_ckpt.listing import newest_valid

    with ExitStack() as stack:
        folders = [stack.enter_context(open_folder(newest_valid(path))) for path in (first, second)]
        differences = compare(*folders)
    for difference in differences:
        click.echo(f"{difference.name}: {difference.text}")
    if differences:
        raise CkptError(f"{len(differences)} differences, the first in {differences[0].name}")
    click.echo("equal to the last bit")


@main.command()
@click.argument("root", type=_FOLDER)
@click.option("--keep-last", type=click.IntRange(min=1), default=3, show_default=True, help="Newest ones to keep.")
@click.option("--keep-every", type=click.IntRange(min=0), default=0, help="Keep steps that are multiples of this.")
@click.option("--keep-every-minutes", type=click.IntRange(min=0), default=0, help="Keep one for each such time.")
@click.option("--keep-best", type=click.IntRange(min=0), default=0, help="Number of best ones to keep.")
@click.option("--best-metric", default="", help="Where the metric stands in the values: metrics.validation_loss.")
@click.option("--best-is", type=click.Choice(["lowest", "highest"]), default="lowest", show_default=True)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
def prune(root: Path, dry_run: bool, **settings: Any) -> None:
    """Delete valid checkpoints under ROOT that need not be kept; damaged ones are neither counted nor deleted."""
    from ms_ckpt.config import CheckpointConfig
    from ms_ckpt.listing import store_at

    steps = store_at(root, CheckpointConfig(**settings)).prune(is_dry_run=dry_run)
    for step in steps:
        click.echo(f"{'would delete' if dry_run else 'deleted'} step {step}")
    if not steps:
        click.echo("nothing to delete")


main.add_command(reshard)
main.add_command(merge)
main.add_command(convert)


def _name(folder: Path, root: Path) -> str:
    return folder.name if folder == root else str(folder.relative_to(root))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _spell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-"


def _spell_size(size: int) -> str:
    amount, unit = float(size), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
