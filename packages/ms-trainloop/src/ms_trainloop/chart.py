"""Line charts as SVG: axes with round ticks, one path a series, colours from the page's style sheet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 14, 12, 44
_MOST_POINTS = 800


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: points (x, y) in rising x; y None leaves a gap."""

    name: str
    """Shown in the legend."""
    points: Sequence[tuple[float, float | None]]
    """What is drawn."""
    color: int
    """Number of the style sheet's colour, from 0."""
    is_dashed: bool = False
    """Dashed with a dot at each point, for values measured now and then."""
    is_planned: bool = False
    """Wide and pale, behind the others, for what was planned."""


def draw_chart(series: Sequence[Series], *, x_label: str, y_label: str) -> str:
    """Returns an `<svg>` element; series without a point are left out, and so is the chart if all are."""
    drawn = [each for each in series if any(y is not None for _, y in each.points)]
    if not drawn:
        return ""
    xs = [x for each in drawn for x, y in each.points if y is not None]
    ys = [y for each in drawn for _, y in each.points if y is not None]
    x_ticks, y_ticks = round_ticks(min(xs), max(xs)), round_ticks(min(ys), max(ys))
    x_low, x_high, y_low, y_high = x_ticks[0], x_ticks[-1], y_ticks[0], y_ticks[-1]

    def across(x: float) -> float:
        return _LEFT + (x - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)

    def down(y: float) -> float:
        return _HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(y_label)} over {escape(x_label)}">']
    for y, text in zip(y_ticks, tick_labels(y_ticks), strict=True):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down(y):.1f}" y2="{down(y):.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{_LEFT - 8}" y="{down(y) + 4:.1f}">{text}</text>')
    for x, text in zip(x_ticks, tick_labels(x_ticks), strict=True):
        bottom = _HEIGHT - _BOTTOM
        parts.append(
            f'<line class="axis" x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
            f'<text class="tick" text-anchor="middle" x="{across(x):.1f}" y="{bottom + 18}">{text}</text>'
        )
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{_HEIGHT - _BOTTOM}" y2="{_HEIGHT - _BOTTOM}"/>'
        f'<text class="label" text-anchor="middle" x="{(_LEFT + _WIDTH - _RIGHT) / 2:.0f}" y="{_HEIGHT - 6}">'
        f"{escape(x_label)}</text>"
        f'<text class="label" text-anchor="middle" transform="translate(13 {(_TOP + _HEIGHT - _BOTTOM) / 2:.0f})'
        f' rotate(-90)">{escape(y_label)}</text>'
    )
    for each in drawn:
        style = f'class="line color{each.color}{" dashed" if each.is_dashed else ""}{" planned" * each.is_planned}"'
        path = " ".join(_segments([(across(x), None if y is None else down(y)) for x, y in _thin(each.points)]))
        parts.append(f'<path {style} d="{path}"><title>{escape(each.name)}</title></path>')
        known = [(x, y) for x, y in each.points if y is not None]
        if each.is_dashed or len(known) == 1:
            for x, y in known[:: max(1, len(known) // 100)]:
                title = f"<title>{escape(each.name)}: {x:g}, {y:.6g}</title>"
                where = f'cx="{across(x):.1f}" cy="{down(y):.1f}"'
                parts.append(f'<circle class="dot color{each.color}" {where} r="3">{title}</circle>')
    return "".join([*parts, "</svg>"])


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns about `count` evenly spaced round numbers (steps of 1, 2 or 5 times a power of ten) around [low, high].

    A range of no width is widened, so that there are always two ticks.
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(low) * 0.1
        low, high = (low - room, high + room) if room else (0.0, 1.0)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [index * size for index in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Returns the ticks as text, all with the same decimals, or with exponents where those would be too long."""
    size = ticks[1] - ticks[0]
    largest = max(abs(ticks[0]), abs(ticks[-1]))
    if size < 1e-4 or largest >= 1e7:
        digits = max(0, math.floor(math.log10(largest)) - math.floor(math.log10(size) + 1e-9))
        return ["0" if abs(tick) < size / 2 else f"{tick:.{digits}e}" for tick in ticks]
    decimals = max(0, -math.floor(math.log10(size) + 1e-9))
    return [f"{tick:,.{decimals}f}" for tick in ticks]


def _segments(points: Sequence[tuple[float, float | None]]) -> list[str]:
    """Path commands; a gap starts a new segment."""
    commands, is_open = [], False
    for x, y in points:
        if y is not None:
            commands.append(f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}")
        is_open = y is not None
    return commands


def _thin(points: Sequence[tuple[float, float | None]]) -> Sequence[tuple[float, float | None]]:
    """At most some hundred points: of each run of neighbours the lowest and the highest, so that no spike is lost."""
    if len(points) <= _MOST_POINTS:
        return points
    size = math.ceil(len(points) / (_MOST_POINTS // 2))
    kept: set[int] = {0, len(points) - 1}
    for start in range(0, len(points), size):
        group = range(start, min(start + size, len(points)))
        gaps = [i for i in group if points[i][1] is None]
        heights = {i: y for i in group if (y := points[i][1]) is not None}
        kept.update(gaps[:1])
        if heights:
            kept.update((min(heights, key=lambda i: heights[i]), max(heights, key=lambda i: heights[i])))
    return [points[i] for i in sorted(kept)]
