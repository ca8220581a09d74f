"""Lines and paragraphs as units that may be removed one by one."""

import re
from collections.abc import Sequence

_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")
_PARAGRAPH = re.compile(r"(?:[^\n]+\n?)+\n*|\n+")


def split_units(text: str, kind: str) -> list[str]:
    """The lines, or the paragraphs, of a text, with the line ends behind them; joined they are the text."""
    return (_LINE if kind == "line" else _PARAGRAPH).findall(text)


def join_units(units: Sequence[str], is_kept: Sequence[bool]) -> str:
    """The text of the kept units, without line ends at its ends."""
    return "".join(unit for unit, kept in zip(units, is_kept, strict=True) if kept).strip("\n")
