"""The command `ms-parallel`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

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


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Ranks, launch, plans and checks for distributed MindSpore training."""


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check Python, MindSpore, numpy, msrun, CANN and driver; exit code 1 on errors. Works without MindSpore."""
    from ms_parallel.doctor import examine, has_errors

    findings = examine()
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            advice = f": {finding.advice}" if finding.advice else ""
            click.echo(f"{finding.status:<8}{finding.name:<10} {finding.found}{advice}")
    ctx.exit(1 if has_errors(findings) else 0)


@main.command()
@click.option("--model", type=_FILE, required=True, help="The model's config.json.")
@click.option("--parameters", type=_FILE, required=True, help="JSON: shape of every parameter by name.")
@click.option("--world-size", type=click.IntRange(min=1), required=True, help="Number of ranks.")
@click.option("--config", "settings", type=_FILE, help="JSON: the section `parallel` of a run's configuration.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File for the plan; printed if not given."
)
def plan(model: Path, parameters: Path, world_size: int, settings: Path | None, output: Path | None) -> None:
    """Lay a model on ranks and write the plan; all violations at once, with the nearest valid meshes."""
    from ms_parallel.config import ParallelConfig, from_mapping
    from ms_parallel.plan import plan as make_plan
    from ms_parallel.plan import to_json

    config = from_mapping(ParallelConfig, _read(settings) if settings else {}, "parallel")
    text = to_json(make_plan(config, _read(parameters), _read(model), world_size))
    if output is None:
        click.echo(text, nl=False)
        return
    _publish(output, text)
    click.echo(f"wrote {output}")


@main.command()
@click.argument("file", type=_FILE)
def check(file: Path) -> None:
    """Check a plan FILE: format, numbering of ranks, groups, and that slices tile every parameter."""
    from ms_parallel.mesh import spell
    from ms_parallel.plan import check_plan

    document = _read(file)
    try:
        check_plan(document)
    except ParallelError as error:
        raise type(error)(f"{file}: {error}") from error
    click.echo(f"{file}: valid, {document['world_size']} ranks, {spell(document['mesh'])}")


@main.command(context_settings={"ignore_unknown_options": True})
@click.option("--workers", type=click.IntRange(min=1), required=True, help="Number of processes.")
@click.option("--log-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("logs"), show_default=True)
@click.option("--port", type=int, help="Port of the job's scheduler; a free one by default.")
@click.option("--timeout", type=float, default=120.0, show_default=True, help="Seconds for all workers to join.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def launch(
    ctx: click.Context, workers: int, log_dir: Path, port: int | None, timeout: float, command: tuple[str, ...]
) -> None:
    """Run COMMAND in several processes through msrun; ends at once, with its last lines, when one fails.

    Write `--` before the command.
    """
    from ms_parallel.launch import launch as start

    ctx.exit(start(command, num_workers=workers, log_dir=log_dir, port=port, timeout=timeout))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ParallelError(f"{path}: not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ParallelError(f"{path}: expected an object, found {type(document).__name__}")
    return document


def _publish(path: Path, text: str) -> None:
    import os

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
