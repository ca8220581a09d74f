"""The report of a build, for people: what was read, kept and dropped, as report.json and one self-contained page."""

import html
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ms_dataprep.manifest import Manifest, write_file

_MEANINGS = {
    "bad_line": "lines that are no document; listed in rejected.jsonl",
    "blank_line": "blank lines",
    "empty": "no text left after cleaning",
    "too_short": "fewer characters than min_characters",
    "duplicate": "the same text as an earlier document",
    "other_part": "belongs to the other part of the train/validation split",
    "no_token": "the tokenizer gives no id for it",
    "special_id_in_text": "its text gives an id that ends documents, begins them or pads",
}
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%}th,td{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td{overflow-wrap:anywhere}
svg{width:100%;height:auto}rect{fill:#3b6ea5}svg text{font-size:11px;fill:#444}
.muted{color:#666}
"""
_SOURCES_SHOWN = 200


class Statistics:
    """What a build counts beside the contract's counts."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.documents_by_source: list[int] = []
        self.kept_by_source: list[int] = []
        self.tokens_by_source: list[int] = []
        self.documents_read = 0
        self.characters_kept = 0
        self.lengths: Counter[int] = Counter()
        self.first_rejected = ""

    def begin_source(self, path: str) -> None:
        """A new source is being read."""
        self.documents_by_source.append(0)
        self.kept_by_source.append(0)
        self.tokens_by_source.append(0)

    def read(self, source: int) -> None:
        """A document was read from a source."""
        self.documents_by_source[source] += 1
        self.documents_read += 1

    def drop(self, reason: str) -> None:
        """A document, or a line in its place, was dropped."""
        self.dropped[reason] += 1

    def keep(self, source: int, num_tokens: int, num_characters: int) -> None:
        """A document goes into rows; its length is counted under the power of two that bounds it from below."""
        self.kept_by_source[source] += 1
        self.tokens_by_source[source] += num_tokens
        self.characters_kept += num_characters
        self.lengths[1 << (num_tokens.bit_length() - 1)] += 1


def write_report(folder: Path, manifest: Manifest, statistics: Statistics, cleaned: Mapping[str, int]) -> None:
    """Writes report.json and report.html."""
    facts = _gather(manifest, statistics, cleaned)
    write_file(folder / "report.json", json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_file(folder / "report.html", _render(facts))


def _gather(manifest: Manifest, statistics: Statistics, cleaned: Mapping[str, int]) -> dict[str, Any]:
    packing = manifest.packing
    return {
        "created_by": manifest.created_by,
        "summary": {
            "documents read": statistics.documents_read,
            "documents kept": manifest.documents,
            "tokens": manifest.tokens,
            "characters per token": round(statistics.characters_kept / max(1, manifest.tokens), 3),
            "rows": manifest.rows,
            "tokens a row": manifest.row_length,
            "shards": len(manifest.shards),
            "packing": packing["method"],
            "padding": f"{100 * packing['padding_share']:.3f}%",
            "documents cut": packing["documents_cut"],
            "tokens truncated": packing["truncated_tokens"],
            "vocabulary": manifest.vocab_size,
        },
        "sources": [
            {
                "path": source["path"],
                "bytes": source["bytes"],
                "read": source["documents"],
                "kept": kept,
                "tokens": tokens,
            }
            for source, kept, tokens in zip(
                manifest.sources, statistics.kept_by_source, statistics.tokens_by_source, strict=True
            )
        ],
        "dropped": dict(sorted(statistics.dropped.items())),
        "cleaned": dict(cleaned),
        "lengths": {str(length): statistics.lengths[length] for length in sorted(statistics.lengths)},
    }


def _render(facts: dict[str, Any]) -> str:
    summary = [[name, _show(value)] for name, value in facts["summary"].items()]
    dropped = [[name, _show(count), _MEANINGS.get(name, "")] for name, count in facts["dropped"].items()]
    cleaned = [[name.replace("_", " "), _show(count)] for name, count in facts["cleaned"].items()]
    largest = sorted(facts["sources"], key=lambda source: -source["tokens"])[:_SOURCES_SHOWN]
    sources = [
        [source["path"], *(_show(source[key]) for key in ("bytes", "read", "kept", "tokens"))] for source in largest
    ]
    left_out = len(facts["sources"]) - len(largest)
    note = f'<p class="muted">and {left_out} smaller ones, in report.json</p>' if left_out else ""
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
<h2>Document lengths in tokens</h2>
{_histogram({int(length): count for length, count in facts["lengths"].items()})}
<h2>Dropped</h2>
{_table(["reason", "documents", "meaning"], dropped, {1}) if dropped else "<p>Nothing.</p>"}
<h2>Documents changed by cleaning</h2>
{_table(["step", "documents"], cleaned, {1})}
<h2>Sources</h2>
{_table(["file", "bytes", "read", "kept", "tokens"], sources, {1, 2, 3, 4})}{note}
</body>
</html>
"""


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
