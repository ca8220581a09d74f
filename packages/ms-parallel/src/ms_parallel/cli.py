"""The command `ms-parallel`."""

import click

from ms_parallel.__about__ import __version__
from ms_parallel.errors import ParallelError


class _Commands(click.Group):
    """Turns expected errors into one line and exit code 1; `--debug` shows the traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (ParallelError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Ranks, launch, plans and checks for distributed MindSpore training."""
