"""Measures product against peers: each in a process of its own, alternating, medians with spread, ratios."""

import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

import click
from run_config import RunConfigError
from tool_command import ToolCommand
from tqdm import tqdm

BENCHMARKS = Path(__file__).parents[1] / "integration_tests" / "benchmarks"
PEERS = ("mindspore", "torch", "transformers", "numpy", "safetensors")


def load_benchmark(name: str) -> ModuleType:
    """Imports a benchmark: a file with `FIGURES`, `UNIT` and `measure(contender) -> float`.

    A figure is the ratio of a pair of contenders, or one contender's own value.
    """
    path = BENCHMARKS / f"{name}.py"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in BENCHMARKS.glob("*.py")))
        raise RunConfigError(f"no benchmark {name!r}; there are: {known}")
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where MindSpore looks for the source of a cell
    spec.loader.exec_module(module)
    return module


def run_benchmark(name: str, rounds: int) -> dict:
    """Returns name, figures (median of the pairwise ratios), spread, peers' raw medians and the machine."""
    benchmark = load_benchmark(name)
    figures = {key: (of,) if isinstance(of, str) else of for key, of in benchmark.FIGURES.items()}
    contenders = list(dict.fromkeys(contender for of in figures.values() for contender in of))
    values: dict[str, list[float]] = {contender: [] for contender in contenders}
    for _ in tqdm(range(rounds), desc=f"{name}: rounds", disable=None):
        for contender in contenders:
            values[contender].append(_measure_apart(name, contender))
    ratios = {key: _divide(*(values[contender] for contender in of)) for key, of in figures.items()}
    return {
        "name": name,
        "figures": {key: round(statistics.median(pairs), 3) for key, pairs in ratios.items()},
        "spread": {key: [round(min(pairs), 3), round(max(pairs), 3)] for key, pairs in ratios.items()},
        "peers": {c: {"median": round(statistics.median(v), 2), "unit": benchmark.UNIT} for c, v in values.items()},
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "rounds": rounds, **_versions()},
    }


def _divide(first: list[float], second: list[float] | None = None) -> list[float]:
    return first if second is None else [a / b for a, b in zip(first, second, strict=True)]


def _measure_apart(name: str, contender: str) -> float:
    command = [sys.executable, __file__, name, "--contender", contender]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RunConfigError(
            f"{name}: contender {contender} ended with exit code {done.returncode}; its last lines are above"
        )
    return float(json.loads(done.stdout.splitlines()[-1])["value"])


def _versions() -> dict[str, str]:
    found = {}
    for package in PEERS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@click.command(cls=ToolCommand, help=__doc__)
@click.argument("name")
@click.option("--rounds", default=5, show_default=True, help="How often each contender is measured.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the result here.")
@click.option("--contender", hidden=True, help="Measure one contender in this process.")
def main(name: str, rounds: int, json_path: Path | None, contender: str | None) -> None:
    if contender:
        click.echo(json.dumps({"value": load_benchmark(name).measure(contender)}))
        return
    result = run_benchmark(name, rounds)
    for key, figure in result["figures"].items():
        low, high = result["spread"][key]
        click.echo(f"{key:<32} {figure:>8.3f}  ({low:.3f} ... {high:.3f})")
    for peer, value in result["peers"].items():
        click.echo(f"{peer:<32} {value['median']:>10.2f} {value['unit']}")
    if json_path:
        json_path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
