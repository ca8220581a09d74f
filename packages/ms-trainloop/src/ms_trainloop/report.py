"""A self-contained HTML page about one run or several: curves of the metrics, final figures, samples."""

import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ms_trainloop.__about__ import __version__
from ms_trainloop.chart import Series, draw_chart
from ms_trainloop.config import TrainConfig
from ms_trainloop.errors import TrainLoopError
from ms_trainloop.metrics import read_metrics
from ms_trainloop.plan import planned_rates, read_plan

_NUM_COLORS = 8
_CHARTS = (
    ("Loss", "loss", "nats per token"),
    ("Learning rate", "learning_rate", "learning rate"),
    ("Gradient norm", "grad_norm", "norm before clipping"),
    ("Speed", "tokens_per_second", "tokens per second"),
    ("Waiting for data", "data_wait", "share of time"),
    ("Bits per byte", "bits_per_byte", "evaluation, bits per byte"),
    ("Auxiliary loss", "auxiliary_loss", "added to the loss"),
    ("Model FLOPs utilization", "mfu", "share of the peak"),
    ("Skipped steps", "skipped_steps", "steps since the start"),
)
_STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1c2128;--soft:#5d6773;--rule:#e1e5ea;--card:#f7f8fa;
--c0:#2563c9;--c1:#c2570c;--c2:#1a7f4b;--c3:#9333b8;--c4:#b4233c;--c5:#0e7c86;--c6:#7a6a00;--c7:#555f6b}
@media(prefers-color-scheme:dark){:root{--page:#14171b;--text:#e4e7eb;--soft:#98a2ae;--rule:#2c323a;--card:#1b1f25;
--c0:#6ea8ff;--c1:#ff9a52;--c2:#4ecb8b;--c3:#cf8cf0;--c4:#ff7285;--c5:#4cc9d4;--c6:#d8c64a;--c7:#a5afbb}}
body{margin:0 auto;max-width:1360px;padding:28px 24px 48px;background:var(--page);color:var(--text);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:16px;margin:0 0 8px}p{color:var(--soft);margin:0 0 20px}
section{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:16px 18px;overflow-x:auto}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px;margin:16px 0}
svg{display:block;width:100%;height:auto}
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}.tick{fill:var(--soft);font-size:11px}
.label{fill:var(--soft);font-size:12px}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.dashed{stroke-dasharray:6 4}.planned{stroke-width:7;stroke-opacity:.28}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:13px;color:var(--soft);margin:0 0 6px}
.legend svg{display:inline-block;width:26px;height:8px;margin-right:6px;vertical-align:middle}
table{border-collapse:collapse;width:100%;font-size:14px}th{color:var(--soft);font-weight:600}
th,td{text-align:left;padding:6px 14px 6px 0;border-bottom:1px solid var(--rule);vertical-align:top}
tr:last-child td{border-bottom:0}td.number,th.number{text-align:right;font-variant-numeric:tabular-nums}
.sample{white-space:pre-wrap;overflow-wrap:anywhere}
""" + "".join(f".color{n}{{stroke:var(--c{n})}}.dot.color{n}{{fill:var(--c{n})}}" for n in range(_NUM_COLORS))


def write_report(
    runs: Sequence[Path],
    output: Path,
    *,
    summary: Sequence[Mapping[str, Any]] | None = None,
    title: str = "Training report",
) -> Path:
    """Writes one HTML file without outside references and returns its path.

    Args:
        runs: Folders with `metrics.jsonl`; each is one colour, named after its folder.
        output: The file, replaced whole.
        summary: Rows of a table to show first; the keys of the rows, in order of appearance, are its columns.
        title: Heading of the page.

    Raises:
        MetricsError: A run has no readable metrics.
        TrainLoopError: No run was given.
    """
    if not runs:
        raise TrainLoopError("report: found no run, expected one or more folders with metrics.jsonl")
    metrics = dict(zip(_name_runs(runs), map(read_metrics, runs), strict=True))
    plans = dict(zip(metrics, map(read_plan, runs), strict=True))
    parts = [f"<h1>{escape(title)}</h1><p>{escape(_describe(metrics))}</p>"]
    if summary:
        parts.append(_section("Summary", _table(summary)))
    charts = [_draw(metrics, plans, *chart) for chart in _CHARTS]
    parts.append(f'<div class="charts">{"".join(charts)}</div>')
    parts.append(_section("Final figures", _table([_final_figures(name, lines) for name, lines in metrics.items()])))
    if samples := _last_samples(metrics):
        parts.append(f'<div class="charts">{_section("Last samples", _table(samples))}</div>')
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>\n'
        f"<body>{''.join(parts)}</body></html>\n"
    )
    _publish(output, page)
    return output


def _draw(
    metrics: Mapping[str, list[dict[str, Any]]], plans: Mapping[str, TrainConfig | None], heading: str, key: str,
    y_label: str,
) -> str:  # fmt: skip
    series = []
    if key == "learning_rate":
        for number, (name, plan) in enumerate(plans.items()):
            if plan is not None:
                points = planned_rates(plan)
                color = number % _NUM_COLORS
                series.append(Series(name=f"{name}, planned", points=points, color=color, is_planned=True))
    for number, (name, lines) in enumerate(metrics.items()):
        color = number % _NUM_COLORS
        kind = "evaluation" if key == "bits_per_byte" else "train"
        points = [(line["step"], line.get(key)) for line in lines if line["kind"] == kind]
        series.append(Series(name=name, points=points, color=color, is_dashed=kind == "evaluation"))
        if key == "loss":
            found = [(line["step"], line["loss"]) for line in lines if line["kind"] == "evaluation"]
            series.append(Series(name=f"{name}, evaluation", points=found, color=color, is_dashed=True))
    series = [each for each in series if any(y is not None for _, y in each.points)]
    chart = draw_chart(series, x_label="step", y_label=y_label)
    return _section(heading, _legend(series) + chart) if chart else ""


def _legend(series: Sequence[Series]) -> str:
    styles = [f"line color{each.color}{' dashed' * each.is_dashed}{' planned' * each.is_planned}" for each in series]
    entries = [
        f'<span><svg viewBox="0 0 26 8"><path class="{style}" d="M0 4H26"/></svg>{escape(each.name)}</span>'
        for style, each in zip(styles, series, strict=True)
    ]
    return f'<div class="legend">{"".join(entries)}</div>'


def _section(heading: str, content: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{content}</section>"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    is_number = {c: all(isinstance(row.get(c), int | float | None) for row in rows) for c in columns}
    head = "".join(_cell("th", column, is_number[column]) for column in columns)
    body = "".join(f"<tr>{''.join(_cell('td', row.get(c), is_number[c]) for c in columns)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(tag: str, value: Any, is_number: bool) -> str:
    kind = ' class="number"' if is_number else ' class="sample"' if isinstance(value, str) and "\n" in value else ""
    return f"<{tag}{kind}>{escape(_format(value))}</{tag}>"


def _format(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 and math.isfinite(value) else f"{value:.4g}"
    return str(value)


def _final_figures(name: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    trained = [line for line in lines if line["kind"] == "train"]
    evaluated = [line for line in lines if line["kind"] == "evaluation"]
    last: dict[str, Any] = trained[-1] if trained else {}
    losses = [line["loss"] for line in evaluated if line["loss"] is not None]
    speeds = sorted(line["tokens_per_second"] for line in trained if line["tokens_per_second"] is not None)
    return {
        "run": name,
        "step": last.get("step"),
        "tokens": last.get("tokens"),
        "loss": last.get("loss"),
        "evaluation loss": evaluated[-1]["loss"] if evaluated else None,
        "perplexity": evaluated[-1]["perplexity"] if evaluated else None,
        "best evaluation loss": min(losses) if losses else None,
        "bits per byte": evaluated[-1].get("bits_per_byte") if evaluated else None,
        "median tokens/s": speeds[len(speeds) // 2] if speeds else None,
        "skipped steps": last.get("skipped_steps"),
    }


def _last_samples(metrics: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    rows = []
    for name, lines in metrics.items():
        samples = [line for line in lines if line["kind"] == "sample"]
        rows += [
            {"run": name, "step": line["step"], "prompt": line["prompt"], "text": line["text"]}
            for line in samples
            if line["step"] == samples[-1]["step"]
        ]
    return rows


def _name_runs(runs: Sequence[Path]) -> list[str]:
    """Folder names, or whole paths where two of them share one."""
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def _describe(metrics: Mapping[str, list[dict[str, Any]]]) -> str:
    count = sum(len(lines) for lines in metrics.values())
    runs = "1 run" if len(metrics) == 1 else f"{len(metrics)} runs"
    return f"{runs}, {count:,} lines of metrics; losses are token-weighted, in nats. ms-trainloop {__version__}"


def _publish(output: Path, page: str) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".{output.name}.tmp")
    with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(page)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(output)
