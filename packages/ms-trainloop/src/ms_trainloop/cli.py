"""The command `ms-trainloop`."""

from pathlib import Path

import click

from ms_trainloop.__about__ import __version__
from ms_trainloop.errors import TrainLoopError


class _Commands(click.Group):
    """Turns expected errors into one line and exit code 1; `--debug` shows the traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (TrainLoopError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """A training loop for MindSpore whose every number can be trusted."""


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--output", "-o", default="report.html", show_default=True, type=click.Path(path_type=Path))
@click.option("--title", default="Training report", show_default=True, help="Heading of the page.")
def report(runs: tuple[Path, ...], output: Path, title: str) -> None:
    """Write one HTML page that compares RUNS, folders with a metrics.jsonl."""
    from ms_trainloop.report import write_report

    click.echo(write_report(runs, output, title=title))


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--model",
    "maker",
    required=True,
    help="package.module:function or file.py:function; gets the run's config, returns the model and its parameters.",
)
def replay(folder: Path, maker: str) -> None:
    """Run a recorded step again: FOLDER is RUN/forensics/step-NNNNNNNN. Ends with 1 if it gives other numbers."""
    from ms_trainloop.replay import replay_with

    found = replay_with(folder, maker)
    click.echo(f"step {found.step}: {found.explanation}")
    for name, value in found.result._asdict().items():
        click.echo(f"  {name:<14} recorded {found.recorded[name]!s:<24} now {value}")
    if found.differences:
        raise click.ClickException("not reproduced: " + "; ".join(found.differences))
    click.echo("reproduced to the bit")
