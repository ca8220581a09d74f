"""Text in and out of a bundle, through the tokenizer that it carries and the library `tokenizers`."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ms_export.bundle import Bundle
from ms_export.errors import BundleError, MissingExtraError, PromptError
from ms_export.generation import Token

_CONTEXT = 8
"""Ids before the first new one that are decoded along, so that a leading space comes out as in a whole text."""


@dataclass(frozen=True, kw_only=True)
class TextPiece:
    """One event of a text stream."""

    prompt: int
    """Number of the prompt in the call."""
    text: str
    """New text; may be empty while a character or a possible stop string is incomplete."""
    id: int | None
    """The id that brought it, if any."""
    finish_reason: str | None
    """"stop", "length", or None while it goes on."""


class Vocabulary:
    """A bundle's tokenizer."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        """Reads it.

        Raises:
            PromptError: The bundle has no tokenizer, or one of a kind that this version does not read.
            MissingExtraError: `tokenizers` is not installed.
            BundleError: The file is no tokenizer.
        """
        if bundle.tokenizer is None:
            raise PromptError("the bundle carries no tokenizer; give ids instead of text")
        if bundle.tokenizer.kind != "huggingface":
            raise PromptError(
                f"{bundle.tokenizer.file}: kind {bundle.tokenizer.kind} is not read here; give ids instead of text"
            )
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError('text needs the library tokenizers: pip install "ms-export[text]"') from error
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / bundle.tokenizer.file))
        except Exception as error:
            raise BundleError(f"{bundle.tokenizer.file}: not a tokenizer: {error}") from error
        self._tokenizer.encode_special_tokens = True  # a special string in a prompt is ordinary text
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bos = bundle.generation.bos_token_id

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt: the begin id, if the bundle has one, and the text's."""
        if not isinstance(text, str):
            raise PromptError(f"prompt: expected text, found {text!r}")
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeError) as error:  # lone surrogates
            raise PromptError(f"prompt: not valid Unicode: {error}") from error
        return ids if self._bos is None else [self._bos, *ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special ones left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


class GrowingText:
    """Turns ids into text one by one, never showing half a character or a part of a stop string."""

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        """Args: `decode` from ids to text, the prompt's ids, strings that end the text."""
        self._decode, self._stop = decode, tuple(stop)
        self._ids = list(prompt[-_CONTEXT:])
        self._start, self._read = 0, len(self._ids)
        self._held = ""
        self.is_stopped = False

    def add(self, token: int) -> str:
        """Adds an id and returns the text that is now certain."""
        self._ids.append(token)
        return self._certain(self._new_text(is_last=False), is_last=False)

    def finish(self) -> str:
        """Returns what was held back; half a character becomes U+FFFD."""
        return self._certain(self._new_text(is_last=True), is_last=True)

    def _new_text(self, *, is_last: bool) -> str:
        # Decoding from a little before the new ids keeps the cost per id constant and the spaces right.
        before = self._decode(self._ids[self._start : self._read])
        now = self._decode(self._ids[self._start :])
        if len(now) <= len(before) or (now.endswith("\ufffd") and not is_last):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _certain(self, text: str, *, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        text = self._held + text
        places = [place for place in (text.find(s) for s in self._stop) if place >= 0]
        if places:
            self.is_stopped, self._held = True, ""
            return text[: min(places)]
        kept = 0
        if not is_last:
            ends = [n for s in self._stop for n in range(1, len(s)) if text.endswith(s[:n])]
            kept = max(ends, default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def stream_text(
    vocabulary: Vocabulary,
    prompts: Sequence[Sequence[int]],
    stop: Sequence[str],
    start: Callable[[Callable[[int, int], bool]], Iterator[Token]],
) -> Generator[TextPiece, None, None]:
    """Turns a stream of ids into a stream of text.

    Args:
        vocabulary: The tokenizer.
        prompts: The prompts' ids.
        stop: Strings that end a text.
        start: Begins the stream of ids, given the function that tells it when a text has ended.

    Raises:
        PromptError: A stop string is empty or no text.
    """
    if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
        raise PromptError(f"stop: expected a list of strings that are not empty, found {stop!r}")
    texts = [GrowingText(vocabulary.decode, prompt, stop) for prompt in prompts]
    news = [""] * len(prompts)

    def is_ended(prompt: int, token: int) -> bool:
        news[prompt] = texts[prompt].add(token)
        return texts[prompt].is_stopped

    return _pieces(texts, news, start(is_ended))


def _pieces(texts: list[GrowingText], news: list[str], tokens: Iterator[Token]) -> Generator[TextPiece, None, None]:
    for token in tokens:
        text = news[token.prompt] if token.id is not None else ""
        if token.finish_reason is not None:
            text += texts[token.prompt].finish()
        yield TextPiece(prompt=token.prompt, text=text, id=token.id, finish_reason=token.finish_reason)
