"""One prompt's text as it grows: where it ends, and what of it can be shown already."""

from collections.abc import Callable, Sequence

import numpy as np

from ms_gptmodel.sampling import GenerationConfig

DecodeText = Callable[[Sequence[int]], str]
"""Ids to their text, as a tokenizer's `decode`."""


class Lane:
    """Ids of one prompt and the state of its continuation.

    Args:
        index: of the prompt in the caller's list; its draws depend on it.
        prompt: its ids.
        limit: of ids in all.
        ends: ids that end the text.
        config: how it is continued.
        decode_text: for stop strings and text; None: ids only.
    """

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        limit: int,
        ends: set[int],
        config: GenerationConfig,
        decode_text: DecodeText | None,
    ) -> None:
        self.index, self.ids, self._start = index, list(prompt), len(prompt)
        self._limit, self._ends, self._stops, self._decode_text = limit, ends, config.stop_strings, decode_text
        self.generator = np.random.Generator(np.random.Philox([config.seed, index]))
        self.finish_reason = "length" if len(self.ids) >= limit else ""
        self.text = ""
        self._num_told_ids, self._num_told = 0, 0

    @property
    def new_ids(self) -> tuple[int, ...]:
        """Ids after the prompt."""
        return tuple(self.ids[self._start :])

    def add(self, chosen: int) -> None:
        """Takes the next id; one that comes after the end is dropped."""
        if self.finish_reason:
            return
        if chosen in self._ends:
            self.finish_reason = "stop"
        else:
            self.ids.append(chosen)
            if len(self.ids) >= self._limit:
                self.finish_reason = "length"
            if self._stops:
                self._read()

    def tell(self) -> tuple[tuple[int, ...], str]:
        """New ids since the last call, and the text that can no longer change.

        Held back until they are certain: a character whose bytes are not all there, and what may begin a stop string.
        """
        ids = self.new_ids[self._num_told_ids :]
        self._num_told_ids += len(ids)
        if self._decode_text is None:
            return ids, ""
        self._read()
        certain = len(self.text)
        if not self.finish_reason:
            certain -= len(self.text) - len(self.text.rstrip("\ufffd"))
            for stop in self._stops:
                held = next((n for n in range(len(stop) - 1, 0, -1) if self.text[:certain].endswith(stop[:n])), 0)
                certain = min(certain, len(self.text[:certain]) - held)
        piece = self.text[self._num_told : certain]
        self._num_told = max(self._num_told, certain)
        return ids, piece

    def _read(self) -> None:
        """The text of the new ids, cut before the first stop string."""
        if self._decode_text is None:
            return
        self.text = self._decode_text(self.new_ids)
        found = [place for stop in self._stops if (place := self.text.find(stop)) >= 0]
        if found:
            self.text, self.finish_reason = self.text[: min(found)], "stop"
