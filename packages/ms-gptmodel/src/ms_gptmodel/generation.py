"""Continuation of prompts with the cache: any number of prompts, of any lengths, whole or piece by piece."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor

from ms_gptmodel.cache import CachedDecoder
from ms_gptmodel.errors import InputError
from ms_gptmodel.ids import check_ids
from ms_gptmodel.lane import DecodeText, Lane
from ms_gptmodel.sampling import GenerationConfig, choose

_SMALLEST_BUCKET = 16
_GREEDY_STEPS = 8  # in one call; 8 recover nine tenths of what calling costs

__all__ = ["Generation", "GenerationConfig", "Piece", "generate", "stream"]


@dataclass(frozen=True)
class Generation:
    """What one prompt got."""

    ids: tuple[int, ...]
    """The new ids, without the prompt and without the id that ended the text."""
    finish_reason: str
    """`stop`: an end id or a stop string came; `length`: max_new_tokens or the decoder's max_length was reached."""
    text: str = ""
    """Their text, cut before a stop string; empty without `decode_text`."""


@dataclass(frozen=True)
class Piece:
    """What one prompt got since its last piece."""

    index: int
    """Of the prompt."""
    ids: tuple[int, ...]
    """New ids."""
    text: str
    """Text that will not change any more; empty without `decode_text`."""
    finish_reason: str
    """Empty while more is to come; then as in Generation."""


def generate(
    decoder: CachedDecoder,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig | None = None,
    *,
    decode_text: DecodeText | None = None,
) -> list[Generation]:
    """Continues each prompt as if it were alone; one result a prompt, in order.

    Prompts are padded to powers of two and run in batches as the decoder has slots, so that few shapes are compiled.
    Use one decoder from one thread.

    Args:
        decoder: the model's cache.
        prompts: ids.
        config: how to continue.
        decode_text: ids to text, as a tokenizer's `decode`; for `text` in the results, and needed for stop strings.

    Raises:
        InputError: an empty or too long prompt, an id out of range, stop strings without `decode_text`.
    """
    config = config or GenerationConfig()
    lanes = _make_lanes(decoder, prompts, config, decode_text)
    for batch in _batches(decoder, lanes):
        for _ in _run(decoder, batch, config):
            pass
        for lane in batch:
            lane.tell()
    return [Generation(lane.new_ids, lane.finish_reason, lane.text) for lane in lanes]


def stream(
    decoder: CachedDecoder,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig | None = None,
    *,
    decode_text: DecodeText | None = None,
) -> Iterator[Piece]:
    """As `generate`, but yields a piece of a prompt as soon as there is one; together they are what `generate` gives.

    The first piece comes after the prompts were read. Greedy texts grow by up to 8 ids a piece, sampled ones by one.
    Everything that can be refused is refused at the call, before the first piece.
    """
    config = config or GenerationConfig()
    lanes = _make_lanes(decoder, prompts, config, decode_text)
    return _pieces(decoder, lanes, config)


def _pieces(decoder: CachedDecoder, lanes: list[Lane], config: GenerationConfig) -> Iterator[Piece]:
    for batch in _batches(decoder, lanes):
        told: set[int] = set()
        for _ in _run(decoder, batch, config):
            for lane in batch:
                if lane.index not in told:
                    ids, text = lane.tell()
                    if lane.finish_reason:
                        told.add(lane.index)
                    if ids or text or lane.finish_reason:
                        yield Piece(lane.index, ids, text, lane.finish_reason)


def _make_lanes(
    decoder: CachedDecoder,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    decode_text: DecodeText | None,
) -> list[Lane]:
    model_config = decoder.model.config
    if config.stop_strings and decode_text is None:
        raise InputError("stop_strings: give decode_text, which turns ids into text")
    ends = set(model_config.eos_token_ids if config.eos_token_ids is None else config.eos_token_ids)
    lanes = []
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= decoder.max_length:
            found = f"{len(prompt)} ids" if len(prompt) else "no id"
            raise InputError(f"prompts[{index}]: expected 1 to {decoder.max_length} ids, found {found}")
        check_ids(model_config, [list(prompt)])
        limit = min(len(prompt) + config.max_new_tokens, decoder.max_length)
        lanes.append(Lane(index, prompt, limit, ends, config, decode_text))
    return lanes


def _batches(decoder: CachedDecoder, lanes: list[Lane]) -> Iterator[list[Lane]]:
    for start in range(0, len(lanes), decoder.slots - 1):
        yield lanes[start : start + decoder.slots - 1]


def _run(decoder: CachedDecoder, lanes: list[Lane], config: GenerationConfig) -> Iterator[None]:
    """Runs one batch to its end; yields whenever its lanes have grown."""
    vocab_size = min(config.vocab_size or decoder.model.config.vocab_size, decoder.model.config.vocab_size)
    lengths = np.array([len(lane.ids) for lane in lanes], np.int32)
    longest = max(min(n + config.max_new_tokens, decoder.max_length) for n in lengths.tolist())
    length, window = (_bucket(n, decoder.max_length) for n in (int(lengths.max()), longest))
    slots = np.arange(len(lanes), dtype=np.int32)
    padded = np.zeros((len(lanes), length), np.int32)
    for row, lane in zip(padded, lanes, strict=True):
        row[: len(lane.ids)] = lane.ids
    logits = decoder.prefill(Tensor(padded), Tensor(lengths), Tensor(slots)).asnumpy()
    _choose_all(lanes, logits[:, :vocab_size], config)
    yield
    is_greedy = config.temperature == 0 and config.repetition_penalty == 1.0
    num_steps = _GREEDY_STEPS if is_greedy and min(config.max_new_tokens, window) >= _GREEDY_STEPS else 1
    decode = decoder.decode_cell(window)
    loop = decoder.greedy_cell(window, vocab_size, num_steps) if num_steps > 1 else None
    while not all(lane.finish_reason for lane in lanes):
        active = np.array([not lane.finish_reason for lane in lanes])
        # A finished lane goes on at position 0 of the scratch slot.
        ids = Tensor(np.array([[lane.ids[-1]] for lane in lanes], np.int32))
        positions = Tensor(np.where(active, [len(lane.ids) - 1 for lane in lanes], 0).astype(np.int32))
        places = Tensor(np.where(active, slots, decoder.slots - 1).astype(np.int32))
        if loop is None:
            _choose_all(lanes, decode(ids, positions, places).asnumpy()[:, :vocab_size], config)
        else:
            chosen, is_finite = loop(ids, positions, places)
            if not is_finite.asnumpy()[0]:
                raise InputError("logits: found NaN or infinity; the weights or the cache are broken")
            for lane, row in zip(lanes, chosen.asnumpy().tolist(), strict=True):
                for one in row:
                    lane.add(one)
        yield


def _choose_all(lanes: list[Lane], logits: np.ndarray, config: GenerationConfig) -> None:  # type: ignore[type-arg]
    for lane, row in zip(lanes, logits, strict=True):
        if not lane.finish_reason:
            lane.add(choose(row, config, lane.generator, lane.ids))


def _bucket(length: int, largest: int) -> int:
    """The power of two from 16 on that holds `length`, at most `largest`."""
    size = _SMALLEST_BUCKET
    while size < length:
        size *= 2
    return min(size, largest)
