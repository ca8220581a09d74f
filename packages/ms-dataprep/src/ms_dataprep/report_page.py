"""The page of a build's report: tables and bars, no script, nothing loaded from elsewhere."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

_MEANINGS = {
    "bad_line": "lines that are no document; listed in rejected.jsonl",
    "blank_line": "blank lines",
    "empty": "no text left after cleaning",
    "too_short": "fewer characters than min_characters",
    "duplicate": "the same text as an earlier document",
    "near_duplicate": "nearly the text of an earlier document",
    "repeated_lines": "nothing left after lines or paragraphs seen before were removed",
    "other_part": "belongs to the other part of the train/validation split",
    "source_weight": "left out by its source's weight",
    "heldout": "shares an n-gram with a held-out text",
    "no_token": "the tokenizer gives no id for it",
    "special_id_in_text": "its text gives an id that ends documents, begins them or pads",
}
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td{overflow-wrap:anywhere}
svg{width:100%;height:auto}rect{fill:#3b6ea5}svg text{font-size:11px;fill:#444}
.muted{color:#666}blockquote{margin:.3rem 0 1rem;padding:.3rem .8rem;border-left:3px solid #3b6ea5;white-space:pre-wrap}
blockquote.dropped{border-color:#b5532c}
"""
_SOURCES_SHOWN = 200


def render_page(facts: Mapping[str, Any]) -> str:
    """The page, of what report.json holds."""
    summary = [[name, _show(value)] for name, value in facts["summary"].items()]
    dropped = [[name, _show(count), _explain(name)] for name, count in facts["dropped"].items()]
    cleaned = [[name.replace("_", " "), _show(count)] for name, count in facts["cleaned"].items()]
    largest = sorted(facts["sources"], key=lambda source: -source["tokens"])[:_SOURCES_SHOWN]
    sources = [
        [source["path"], *(_show(source[key]) for key in ("bytes", "read", "kept", "tokens"))] for source in largest
    ]
    left_out = len(facts["sources"]) - len(largest)
    note = f'<p class="muted">and {left_out} smaller ones, in report.json</p>' if left_out else ""
    lengths = {int(length): count for length, count in facts["lengths"].items()}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Dataset report</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Dataset report</h1>
<p class="muted">{html.escape(facts["created_by"])}</p>
{_table(["", "value"], summary, {1})}
<h2>Documents by stage</h2>
{_bars(facts["stages"])}
<h2>Document lengths in tokens</h2>
{_histogram(lengths)}
<h2>Dropped</h2>
{_table(["reason", "documents", "meaning"], dropped, {1}) if dropped else "<p>Nothing.</p>"}
{_section("Languages", _bars(facts["languages"]) if facts["languages"] else "")}
{_section("Clusters of duplicates, by number of documents", _bars(facts["clusters"]) if facts["clusters"] else "")}
<h2>Documents changed by cleaning</h2>
{_table(["step", "documents"], cleaned, {1})}
<h2>Sources</h2>
{_table(["file", "bytes", "read", "kept", "tokens"], sources, {1, 2, 3, 4})}{note}
<h2>Samples</h2>
{"".join(map(_sample, facts["samples"]))}
</body>
</html>
"""


def _explain(reason: str) -> str:
    if reason in _MEANINGS:
        return _MEANINGS[reason]
    if reason.startswith("language_"):
        return "its language is not among those to keep, or not sure enough"
    return f"quality rule: {reason.replace('_', ' ')}"


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}" if content else ""


def _sample(sample: Mapping[str, Any]) -> str:
    rule = sample.get("rule")
    title = f"{rule}: {sample['value']} (threshold {sample['threshold']})" if rule else "passed"
    kind = ' class="dropped"' if rule else ""
    return f'<div class="muted">{html.escape(title)}</div><blockquote{kind}>{html.escape(sample["text"])}</blockquote>'


def _show(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: set[int]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        shown = (
            f"<{tag}{' class=n' if place in numeric else ''}>{html.escape(cell)}</{tag}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{''.join(shown)}</tr>"

    return "\n".join(["<table>", line(heads, "th"), *(line(row, "td") for row in rows), "</table>"])


def _bars(counts: Mapping[str, int], limit: int = 20) -> str:
    """Horizontal bars, a name and a number each."""
    shown = list(counts.items())[:limit]
    highest = max(1, *(count for _, count in shown))
    lines = []
    for place, (name, count) in enumerate(shown):
        y, width = 24 * place, 560 * count / highest
        lines.append(
            f'<text x="190" y="{y + 16}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="200" y="{y + 3}" width="{width:.1f}" height="18"/>'
            f'<text x="{206 + width:.1f}" y="{y + 16}">{count:,}</text>'
        )
    return f'<svg viewBox="0 0 900 {24 * len(shown)}" role="img">{"".join(lines)}</svg>'


def _histogram(lengths: Mapping[int, int]) -> str:
    """Bars over powers of two, with gaps where no document is."""
    first, last = min(lengths).bit_length() - 1, max(lengths).bit_length() - 1
    bins = [(1 << power, lengths.get(1 << power, 0)) for power in range(first, last + 1)]
    width, height, highest = 900 / len(bins), 180, max(lengths.values())
    bars = []
    for place, (length, count) in enumerate(bins):
        x, tall = place * width, height * count / highest
        middle = x + width / 2
        bars.append(
            f'<rect x="{x + width * 0.1:.1f}" y="{200 - tall:.1f}" width="{width * 0.8:.1f}" height="{tall:.1f}"/>'
            f'<text x="{middle:.1f}" y="{195 - tall:.1f}" text-anchor="middle">{count:,}</text>'
            f'<text x="{middle:.1f}" y="216" text-anchor="middle">{length:,}+</text>'
        )
    return f'<svg viewBox="0 0 900 224" role="img" aria-label="Documents by length">{"".join(bars)}</svg>'
