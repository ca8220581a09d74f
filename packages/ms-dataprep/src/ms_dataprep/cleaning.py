"""Cleaning: small steps from text to text, each counting the documents it changed."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable

Step = Callable[[str], str]

# U+200C and U+200D stay: Persian and emoji sequences need them. Tab and line feed stay.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u180e\u200b\u2060\ufeff]")
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """Halves of surrogate pairs, which JSON escapes can smuggle in and UTF-8 cannot hold, become U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def unify_line_ends(text: str) -> str:
    """CRLF, CR, form feed, vertical tab, NEL and the Unicode separators become LF."""
    return _LINE_ENDS.sub("\n", text)


def remove_control_characters(text: str) -> str:
    """Removes NUL and other control characters, soft hyphens, zero-width spaces and byte order marks."""
    return _CONTROL.sub("", text)


def compose(text: str) -> str:
    """Unicode normal form C; full-width forms stay as they are."""
    return unicodedata.normalize("NFC", text)


def trim(text: str) -> str:
    """Removes white space at the ends of lines, and blank lines at both ends of the document."""
    return "\n".join([line.rstrip() for line in text.split("\n")]).strip("\n")


STANDARD: tuple[tuple[str, Step], ...] = (
    ("surrogates", replace_surrogates),
    ("line_ends", unify_line_ends),
    ("control_characters", remove_control_characters),
    ("nfc", compose),
    ("white_space", trim),
)
NONE: tuple[tuple[str, Step], ...] = (("surrogates", replace_surrogates),)  # without it a text has no UTF-8


class Cleaner:
    """Applies steps in order; `changed` counts per step the documents that it altered."""

    def __init__(self, steps: tuple[tuple[str, Step], ...] = STANDARD) -> None:
        self.steps = steps
        self.changed: Counter[str] = Counter({name: 0 for name, _ in steps})

    def clean(self, text: str) -> str:
        """Returns the cleaned text; cleaning twice changes nothing more."""
        for name, step in self.steps:
            before, text = text, step(text)
            if text != before:
                self.changed[name] += 1
        return text
