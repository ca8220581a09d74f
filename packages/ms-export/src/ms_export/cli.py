"""The command `ms-export`."""

import importlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import click

from ms_export.__about__ import __version__
from ms_export.config import ExportConfig, from_mapping
from ms_export.errors import ConfigError, ExportError, ModelError
from ms_export.model import CachedModel


class _Commands(click.Group):
    """Turns expected errors into one line and exit code 1; `--debug` shows the traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (ExportError, OSError) as error:
            if ctx.params["debug"]:
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.option("--debug", is_flag=True, help="Show the traceback of an error, and MindSpore's own log.")
def main(debug: bool) -> None:
    """MindSpore models as self-contained bundles: export, parity check, generation, serving."""
    # A terminal shows a progress bar; elsewhere lines tell how far it is.
    level = logging.INFO if debug or not sys.stderr.isatty() else logging.WARNING
    logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr)
    if not debug:
        os.environ.setdefault("GLOG_v", "3")  # MindSpore's warnings are for its developers


@main.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option(
    "--source", required=True, metavar="MODULE:FUNCTION",
    help="Function from an ExportConfig to a CachedModel; MODULE is looked for in the working folder too.",
)  # fmt: skip
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="JSON file with export options.")
@click.option("--set", "settings", multiple=True, metavar="KEY=JSON", help="One export option, e.g. max_length=512.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Tokenizer file to carry along.")
@click.option("--tokenizer-kind", default="huggingface", help="huggingface (default) or sentencepiece.")
@click.option("--tokenizer-fingerprint", help="Fingerprint of contract `dataset`.")
@click.option("--overwrite", is_flag=True, help="Replace an existing bundle once the new one is complete.")
def build(
    output: Path, source: str, config_path: Path | None, settings: tuple[str, ...], overwrite: bool, **tokenizer: Any
) -> None:
    """Export a model to the folder OUTPUT and check it."""
    config = _read_config(config_path, settings)
    function = _find(source)
    from ms_export.builder import build as build_bundle

    model = function(config)
    if not isinstance(model, CachedModel):
        raise ModelError(f"{source}: expected it to return a CachedModel, found {type(model).__name__}")
    build_bundle(output, model=model, config=config, overwrite=overwrite, **tokenizer)
    from ms_export.bundle import read

    parity = read(output).parity
    click.echo(f"{output}: largest difference from the model {parity.max_abs_difference:.3g}")


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(bundle: Path, as_json: bool) -> None:
    """Verify all files of BUNDLE and compare its graphs with the source model's logits."""
    from ms_export.parity import check as check_bundle

    result = check_bundle(bundle)
    if as_json:
        figures = {"max_abs_difference": result.max_abs_difference, "max_abs_logit": result.max_abs_logit}
        figures |= {"tolerance": result.tolerance, "allowed": result.allowed}
        click.echo(json.dumps({**figures, "by_graph": result.by_graph}, allow_nan=False))
        return
    for name, difference in result.by_graph.items():
        click.echo(f"{name}  {difference:.3g}")
    click.echo(f"right: largest difference {result.max_abs_difference:.3g}, allowed {result.allowed:.3g}")


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--prompt", help="Text to continue.")
@click.option("--prompt-ids", metavar="ID,ID,...", help="Ids to continue; ids are printed.")
@click.option("--max-new-tokens", type=int, help="New ids at most.")
@click.option("--temperature", type=float, help="0 is greedy.")
@click.option("--top-k", type=int, help="Sample among the k likeliest; 0 means all.")
@click.option("--top-p", type=float, help="Sample among the likeliest up to this probability; 1 means all.")
@click.option("--seed", type=int, default=0, help="Seed of sampling.")
@click.option("--stop", multiple=True, help="Text that ends the answer; may be given several times.")
def generate(bundle: Path, prompt: str | None, prompt_ids: str | None, stop: tuple[str, ...], **options: Any) -> None:
    """Continue a prompt, printing as it comes; options not given are the bundle's defaults."""
    if (prompt is None) == (prompt_ids is None):
        raise click.UsageError("give either --prompt or --prompt-ids")
    if prompt_ids is not None and stop:
        raise click.UsageError("--stop is for --prompt")
    ids = _parse_ids(prompt_ids) if prompt_ids is not None else []
    from ms_export.runtime import Runtime

    runtime = Runtime(bundle)
    if prompt is not None:
        for piece in runtime.stream_text([prompt], stop=stop, **options):
            click.echo(piece.text, nl=False)
        click.echo()
        return
    separator = ""
    for token in runtime.stream([ids], **options):
        if token.id is not None:
            click.echo(f"{separator}{token.id}", nl=False)
            separator = ","
    click.echo()


@main.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=8000, show_default=True, help="Port; 0 takes a free one.")
def serve(bundle: Path, host: str, port: int) -> None:
    """Answer POST /v1/completions and GET /health until SIGTERM or Ctrl-C."""
    from ms_export.runtime import Runtime
    from ms_export.server import BundleServer

    runtime = Runtime(bundle)
    try:
        server = BundleServer(runtime, host, port)
    except (OSError, OverflowError) as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error}") from error
    runtime.warm_up()
    server.serve_until_signal(lambda: click.echo(f"serving {bundle} at http://{host}:{server.server_port}"))
    click.echo("stopped")


def _read_config(path: Path | None, settings: tuple[str, ...]) -> ExportConfig:
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: expected a JSON object, found {type(values).__name__}")
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set {setting}: expected KEY=JSON")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return from_mapping(ExportConfig, values, "export")


def _find(source: str) -> Any:
    module_name, colon, function_name = source.partition(":")
    if not colon or not module_name or not function_name:
        raise ConfigError(f"--source {source}: expected MODULE:FUNCTION")
    if "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"--source {source}: cannot import {module_name}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(f"--source {source}: {module_name} has no function {function_name}")
    return function


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise click.UsageError(f"--prompt-ids: expected whole numbers with commas, found {text!r}") from error


if __name__ == "__main__":
    main()
