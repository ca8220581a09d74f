"""The report of a build, for people: what was read, kept and dropped, as report.json and one self-contained page."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ms_dataprep.deduplication import Duplicates
from ms_dataprep.manifest import Manifest, write_file
from ms_dataprep.reading import ReadCounts
from ms_dataprep.report_page import render_page
from ms_dataprep.writing import ShardCounts

_SAMPLES_A_RULE, _RULES_SAMPLED = 2, 20


def write_report(
    folder: Path,
    manifest: Manifest,
    read: Sequence[ReadCounts],
    written: Sequence[ShardCounts],
    duplicates: Duplicates,
) -> None:
    """Writes report.json and report.html."""
    facts = _gather(manifest, read, written, duplicates)
    write_file(folder / "report.json", json.dumps(facts, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_file(folder / "report.html", render_page(facts))


def _gather(
    manifest: Manifest, read: Sequence[ReadCounts], written: Sequence[ShardCounts], duplicates: Duplicates
) -> dict[str, Any]:
    packing = manifest.packing
    kept, tokens = _add(w.kept for w in written), _add(w.tokens for w in written)
    lengths = _add(w.lengths for w in written)
    documents_read = sum(_add(r.documents for r in read).values())
    gone_in_reading = _add(r.dropped for r in read)
    judged = documents_read - sum(c for name, c in gone_in_reading.items() if name not in ("bad_line", "blank_line"))
    seen = int((duplicates.fates != 0).sum())
    return {
        "created_by": manifest.created_by,
        "summary": {
            "documents read": documents_read,
            "documents kept": manifest.documents,
            "tokens": manifest.tokens,
            "characters per token": round(sum(w.characters for w in written) / max(1, manifest.tokens), 3),
            "rows": manifest.rows,
            "tokens a row": manifest.row_length,
            "shards": len(manifest.shards),
            "packing": packing["method"],
            "padding": f"{100 * packing['padding_share']:.3f}%",
            "documents cut": packing["documents_cut"],
            "tokens truncated": packing["truncated_tokens"],
            "vocabulary": manifest.vocab_size,
        },
        "stages": {
            "read": documents_read,
            "after cleaning and filters": judged,
            "after deduplication": judged - seen,
            "written": manifest.documents,
        },
        "sources": [
            {
                "path": source["path"],
                "bytes": source["bytes"],
                "read": source["documents"],
                "kept": kept.get(str(number), 0),
                "tokens": tokens.get(str(number), 0),
            }
            for number, source in enumerate(manifest.sources)
        ],
        "dropped": dict(sorted(manifest.dropped.items())),
        "cleaned": _add(r.changed for r in read),
        "lengths": {length: lengths[length] for length in sorted(lengths, key=int)},
        "languages": dict(Counter(_add(r.languages for r in read)).most_common()),
        "clusters": {str(size): count for size, count in duplicates.cluster_sizes.items()},
        "samples": _choose_samples(read),
    }


def _choose_samples(read: Sequence[ReadCounts]) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    chosen = []
    for sample in (sample for counts_of_task in read for sample in counts_of_task.samples):
        rule = sample.get("rule", "")
        if counts[rule] < _SAMPLES_A_RULE and (rule in counts or len(counts) < _RULES_SAMPLED):
            counts[rule] += 1
            chosen.append(sample)
    return sorted(chosen, key=lambda sample: str(sample.get("rule", "")))


def _add(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)
