"""The command line that all tools share: `--config`, `--set`, `--debug`, and errors in one line."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from ms_ckpt.errors import CkptError
from ms_dataprep.errors import DataprepError
from ms_export.errors import ExportError
from ms_gptmodel.errors import GptModelError
from ms_parallel.errors import ParallelError
from ms_trainloop.errors import Interrupted, TrainLoopError
from ms_weightconv.errors import WeightConvError
from run_config import RunConfigError

EXPECTED_ERRORS = (
    RunConfigError,
    DataprepError,
    GptModelError,
    ParallelError,
    TrainLoopError,
    CkptError,
    ExportError,
    WeightConvError,
    OSError,
)


class ToolCommand(click.Command):
    """A click command with `--debug`; without it an expected error is one line and exit code 1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."))

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the tool."""
        debug = ctx.params.pop("debug")
        logging.basicConfig(
            level=logging.INFO if debug else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
        )
        try:
            return super().invoke(ctx)
        except Interrupted as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(error.code)
        except EXPECTED_ERRORS as error:
            if debug:
                raise
            raise click.ClickException(" ".join(str(error).split("\n"))) from error


def config_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--config` and `--set` (as `config_path` and `changes`)."""
    function = click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Change one value of the config; may repeat.",
    )(function)
    return click.option(
        "--config", "config_path", type=click.Path(path_type=Path), required=True, help="The run's YAML, see configs/."
    )(function)
