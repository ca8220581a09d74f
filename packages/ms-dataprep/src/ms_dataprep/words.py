"""Words, lines and sentences of a text, in scripts with spaces and in those without."""

import re
from dataclasses import dataclass
from functools import cached_property

# Han, kana and full-width forms are counted by character, everything else by white space.
_CJK = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")
_WORD = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]"
    "|[^\\s\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uff65\U00020000-\U0003134f]+"
)
_SENTENCE_END = re.compile(r"[.!?](?=[\s\"')\]]|$)|[。！？…]+[”’」』）]*")
_PARAGRAPH = re.compile(r"\n{2,}")
TERMINAL = (".", "!", "?", '"', "'", "”", "’", "。", "！", "？", "…", "；", "」", "』", "）")


@dataclass
class TextParts:
    """A cleaned text and its parts, each computed once and only when a rule asks for it."""

    text: str

    @cached_property
    def words(self) -> list[str]:
        """Runs without white space, punctuation included; a Chinese or Japanese character is a word."""
        return _WORD.findall(self.text)

    @cached_property
    def lines(self) -> list[str]:
        """Lines that are not blank, without white space at both ends."""
        return [stripped for line in self.text.split("\n") if (stripped := line.strip())]

    @cached_property
    def paragraphs(self) -> list[str]:
        """Parts between blank lines."""
        return [stripped for part in _PARAGRAPH.split(self.text) if (stripped := part.strip())]

    @cached_property
    def num_sentences(self) -> int:
        """Ends of sentences."""
        return len(_SENTENCE_END.findall(self.text))

    @cached_property
    def is_cjk(self) -> bool:
        """Whether most words are single Chinese or Japanese characters."""
        return not self.text.isascii() and 2 * len(_CJK.findall(self.text)) > len(self.words)
