"""Cleaning: small steps from text to text, each counting the documents it changed."""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ms_dataprep.config import DataConfig
from ms_dataprep.errors import ConfigError, DataprepError
from ms_dataprep.personal_data import mask_personal_data

Step = Callable[[str], str]
Steps = tuple[tuple[str, Step], ...]

# U+200C and U+200D stay: Persian and emoji sequences need them. Tab and line feed stay.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u180e\u200b\u2060\ufeff]")
_LINE_ENDS = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")

# Most texts hold none of these, and a table says so ten times as fast as a search (from some length on).
_IS_CONTROL, _IS_LINE_END, _IS_SPACE = 1, 2, 4
_LONG = 1000
_KINDS = np.zeros(1 << 16, dtype=np.uint8)
for _kind, _pattern in ((_IS_CONTROL, _CONTROL), (_IS_LINE_END, _LINE_ENDS), (_IS_SPACE, re.compile(r"\s"))):
    for _found in _pattern.finditer("".join(map(chr, range(1 << 16)))):
        _KINDS[_found.start()] |= _kind
_ASCII_OF_KIND = {
    kind: bytes(code for code in range(128) if _KINDS[code] & kind) for kind in (_IS_CONTROL, _IS_LINE_END)
}

# Only what HTML knows is a tag: `List<int>` and `<module>` are text.
_HIDDEN_HTML = re.compile(r"<!--|<(script|style)\b", re.IGNORECASE)
_HIDDEN_ENDS = {
    "": re.compile("-->"),
    "script": re.compile(r"</script\s*>", re.IGNORECASE),
    "style": re.compile(r"</style\s*>", re.IGNORECASE),
}
_TAG_NAMES = (
    "a abbr article aside b blockquote body br button center cite code dd del div dl dt em fieldset figcaption figure "
    "font footer form h1 h2 h3 h4 h5 h6 head header hr html i iframe img input ins label li link main meta nav "
    "noscript ol option p pre q s section select small span strike strong sub sup svg table tbody td textarea tfoot th "
    "thead time title tr tt u ul video"
).replace(" ", "|")
_TAG = re.compile(rf"</?(?:{_TAG_NAMES})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_FULL_WIDTH = {
    code: code - 0xFEE0 for first, last in ("０９", "ＡＺ", "ａｚ") for code in range(ord(first), ord(last) + 1)
}


def replace_surrogates(text: str) -> str:
    """Halves of surrogate pairs, which JSON escapes can smuggle in and UTF-8 cannot hold, become U+FFFD."""
    try:
        text.encode("utf-8")  # ten times as fast as the search
        return text
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)


def unify_line_ends(text: str) -> str:
    """CRLF, CR, form feed, vertical tab, NEL and the Unicode separators become LF."""
    return _LINE_ENDS.sub("\n", text) if _may_hold(text, _IS_LINE_END) else text


def remove_control_characters(text: str) -> str:
    """Removes NUL and other control characters, soft hyphens, zero-width spaces and byte order marks."""
    return _CONTROL.sub("", text) if _may_hold(text, _IS_CONTROL) else text


def compose(text: str, form: Literal["NFC", "NFKC"] = "NFC") -> str:
    """A Unicode normal form: C keeps full-width forms, ligatures and the like, KC replaces them."""
    return text if text.isascii() else unicodedata.normalize(form, text)


def remove_html(text: str) -> str:
    """Removes comments, scripts, styles and the tags that HTML has; entities become their characters."""
    text = _TAG.sub("", _remove_hidden_html(text)) if "<" in text else text
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if "&" in text else text


def _remove_hidden_html(text: str) -> str:
    """Without comments, scripts and styles; what never ends stays. Each kind of end is sought once past the last."""
    kept, place, unending = [], 0, set[str]()
    for start in _HIDDEN_HTML.finditer(text):
        kind = (start[1] or "").lower()
        if start.start() < place or kind in unending:
            continue
        if (end := _HIDDEN_ENDS[kind].search(text, start.end())) is None:
            unending.add(kind)
            continue
        kept.append(text[place : start.start()])
        place = end.end()
    return "".join([*kept, text[place:]])


def fold_full_width(text: str) -> str:
    """Full-width Latin letters and digits become ordinary ones; punctuation, which Chinese text needs, stays."""
    return text.translate(_FULL_WIDTH)


def trim(text: str) -> str:
    """Removes white space at the ends of lines, and blank lines at both ends of the document."""
    if len(text) < _LONG or _has_trailing_space(text):
        text = "\n".join([line.rstrip() for line in text.split("\n")])
    return text.rstrip().strip("\n")


def _units(text: str) -> NDArray[np.uint16]:
    """A text's UTF-16 units; every character of a kind is one unit."""
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), dtype="<u2")


def _may_hold(text: str, kind: int) -> bool:
    if text.isascii():
        data = text.encode("ascii")
        return len(data.translate(None, _ASCII_OF_KIND[kind])) < len(data)
    return len(text) < _LONG or bool(np.bitwise_or.reduce(_KINDS[_units(text)]) & kind)


def _has_trailing_space(text: str) -> bool:
    if text.isascii():
        return " \n" in text or "\t\n" in text or any(f"{space}\n" in text for space in "\x0b\x0c\r\x1c\x1d\x1e\x1f")
    units, line_feed = _units(text), ord("\n")
    is_space = (_KINDS[units[:-1]] & _IS_SPACE) != 0
    return bool((is_space & (units[1:] == line_feed) & (units[:-1] != line_feed)).any())


STANDARD: Steps = (
    ("surrogates", replace_surrogates),
    ("line_ends", unify_line_ends),
    ("control_characters", remove_control_characters),
    ("nfc", compose),
    ("white_space", trim),
)
NONE: Steps = (("surrogates", replace_surrogates),)  # without it a text has no UTF-8


class Cleaner:
    """Applies steps in order; `changed` counts per step the documents that it altered."""

    def __init__(self, steps: Steps = STANDARD) -> None:
        self.steps = steps
        self.changed: Counter[str] = Counter({name: 0 for name, _ in steps})

    def clean(self, text: str) -> str:
        """Returns the cleaned text; cleaning twice with the standard steps changes nothing more."""
        for name, step in self.steps:
            before, text = text, step(text)
            if text != before:
                self.changed[name] += 1
        return text


def choose_steps(config: DataConfig) -> Steps:
    """The steps that a config asks for, in their order.

    Raises:
        DataprepError: a step's package is not installed; says how to install it.
        ConfigError: a step of one's own cannot be imported.
    """
    if config.cleaning == "none":
        return (*NONE, *_own_steps(config))
    steps = dict(STANDARD)
    chosen: list[tuple[str, Step]] = [("surrogates", steps["surrogates"])]
    if config.fix_mojibake:
        chosen.append(("mojibake", _find_mojibake_fixer()))
    if config.remove_html:
        chosen.append(("html", remove_html))
    chosen += [(name, steps[name]) for name in ("line_ends", "control_characters")]
    chosen.append(("nfkc", partial(compose, form="NFKC")) if config.unicode_form == "nfkc" else ("nfc", compose))
    if config.fold_full_width:
        chosen.append(("full_width", fold_full_width))
    if config.chinese_script != "keep":
        chosen.append(("chinese_script", _find_chinese_converter(config.chinese_script)))
    if config.mask_personal_data:
        chosen.append(("personal_data", mask_personal_data))
    return (*chosen, ("white_space", trim), *_own_steps(config))


def _own_steps(config: DataConfig) -> Steps:
    found = []
    for name in config.own_steps:
        module, _, function = name.rpartition(".")
        try:
            step = getattr(import_module(module), function)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(
                f"own_steps: {name!r} cannot be imported: {error}; expected package.module.function"
            ) from error
        found.append((name, step))
    return tuple(found)


def _find_mojibake_fixer() -> Step:
    try:
        import ftfy
    except ImportError as error:
        raise DataprepError('fix_mojibake needs ftfy; pip install "ms-dataprep[ftfy]"') from error
    # What the other steps decide on their own is left to them.
    config = ftfy.TextFixerConfig(
        unescape_html=False,
        uncurl_quotes=False,
        fix_character_width=False,
        fix_latin_ligatures=False,
        normalization=None,
    )
    return partial(ftfy.fix_text, config=config)


def _find_chinese_converter(script: str) -> Step:
    try:
        import opencc
    except ImportError as error:
        raise DataprepError('chinese_script needs OpenCC; pip install "ms-dataprep[chinese]"') from error
    converter = opencc.OpenCC("t2s" if script == "simplified" else "s2t")
    convert: Step = converter.convert
    return convert
