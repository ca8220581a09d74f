"""Continuation of prompts with the cache: any number of prompts, of any lengths."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor

from ms_gptmodel.cache import CachedDecoder
from ms_gptmodel.errors import InputError
from ms_gptmodel.ids import check_ids
from ms_gptmodel.sampling import GenerationConfig, choose

_SMALLEST_BUCKET = 16

__all__ = ["Generation", "GenerationConfig", "generate"]


@dataclass(frozen=True)
class Generation:
    """What one prompt got."""

    ids: tuple[int, ...]
    """The new ids, without the prompt and without the id that ended the text."""
    finish_reason: str
    """`stop`: an end id came; `length`: max_new_tokens or the decoder's max_length was reached."""


def generate(
    decoder: CachedDecoder, prompts: Sequence[Sequence[int]], config: GenerationConfig | None = None
) -> list[Generation]:
    """Continues each prompt as if it were alone; one result a prompt, in order.

    Prompts are padded to powers of two and run in batches as the decoder has slots, so that few shapes are compiled.
    Use one decoder from one thread. Raises InputError for an empty or too long prompt or an id out of range.
    """
    config = config or GenerationConfig()
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= decoder.max_length:
            found = f"{len(prompt)} ids" if len(prompt) else "no id"
            raise InputError(f"prompts[{index}]: expected 1 to {decoder.max_length} ids, found {found}")
        check_ids(decoder.model.config, [list(prompt)])
    lanes = decoder.slots - 1
    results: list[Generation] = []
    for start in range(0, len(prompts), lanes):
        results += _generate_batch(decoder, prompts[start : start + lanes], config, start)
    return results


def _generate_batch(
    decoder: CachedDecoder, prompts: Sequence[Sequence[int]], config: GenerationConfig, first: int
) -> list[Generation]:
    model_config = decoder.model.config
    vocab_size = min(config.vocab_size or model_config.vocab_size, model_config.vocab_size)
    ends = set(model_config.eos_token_ids if config.eos_token_ids is None else config.eos_token_ids)
    generators = [np.random.Generator(np.random.Philox([config.seed, first + i])) for i in range(len(prompts))]
    texts = [list(prompt) for prompt in prompts]
    limits = [min(len(prompt) + config.max_new_tokens, decoder.max_length) for prompt in prompts]
    reasons = ["length" if len(text) >= limit else "" for text, limit in zip(texts, limits, strict=True)]
    longest = max(map(len, prompts))
    length, window = (_bucket(n, decoder.max_length) for n in (longest, max(limits)))
    decode = decoder.decode_cell(window)
    slots = np.arange(len(prompts), dtype=np.int32)
    padded = np.zeros((len(prompts), length), np.int32)
    for lane, prompt in enumerate(prompts):
        padded[lane, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    logits = decoder.prefill(Tensor(padded), Tensor(lengths), Tensor(slots)).asnumpy()
    while True:
        for lane in np.flatnonzero([not reason for reason in reasons]):
            chosen = choose(logits[lane, :vocab_size], config, generators[lane], texts[lane])
            if chosen in ends:
                reasons[lane] = "stop"
                continue
            texts[lane].append(chosen)
            if len(texts[lane]) >= limits[lane]:
                reasons[lane] = "length"
        if all(reasons):
            break
        active = np.array([not reason for reason in reasons])
        # A finished lane goes on at position 0 of the scratch slot.
        ids = np.array([[text[-1]] for text in texts], np.int32)
        positions = np.where(active, [len(text) - 1 for text in texts], 0).astype(np.int32)
        lanes = np.where(active, slots, decoder.slots - 1).astype(np.int32)
        logits = decode(Tensor(ids), Tensor(positions), Tensor(lanes)).asnumpy()
    new = [tuple(text[len(prompt) :]) for text, prompt in zip(texts, prompts, strict=True)]
    return [Generation(ids, reason) for ids, reason in zip(new, reasons, strict=True)]


def _bucket(length: int, largest: int) -> int:
    """The power of two from 16 on that holds `length`, at most `largest`."""
    size = _SMALLEST_BUCKET
    while size < length:
        size *= 2
    return min(size, largest)
