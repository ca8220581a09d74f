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
