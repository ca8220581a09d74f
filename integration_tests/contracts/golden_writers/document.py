"""How golden JSON is laid out: one key a line, lists of plain values on one line, so that a diff can be read."""

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as strict JSON with a final line feed, making the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_layout(value, 0) + "\n", encoding="utf-8", newline="\n")


def _layout(value: Any, depth: int) -> str:
    items = list(value.values()) if isinstance(value, dict) else value
    plain = not isinstance(items, list) or not any(isinstance(item, list | dict) and item for item in items)
    if plain or (isinstance(value, list) and not any(isinstance(i, dict) for i in value) and len(repr(value)) < 90):
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner, outer = "\n" + "  " * (depth + 1), "\n" + "  " * depth
    if isinstance(value, dict):
        lines = [f"{json.dumps(k, ensure_ascii=False)}: {_layout(v, depth + 1)}" for k, v in value.items()]
        return "{" + inner + ("," + inner).join(lines) + outer + "}"
    return "[" + inner + ("," + inner).join(_layout(v, depth + 1) for v in value) + outer + "]"
