"""Padding of the vocabulary: rows behind the last id that kernels or splits like to have and no computation sees."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from ms_weightconv.contract import Config
from ms_weightconv.errors import ConfigError
from ms_weightconv.tensor import Tensor
from ms_weightconv.words import Words

_NAMES = ("embedding.weight", "lm_head.weight", "lm_head.bias")
Model = tuple[Config, dict[str, Tensor]]


def without_padding(config: Config, tensors: Mapping[str, Tensor]) -> Model:
    """A model of contract `model` with exactly `vocab_size` rows; padding, on which nothing depends, is left out."""
    return _with_rows(config, tensors, config["vocab_size"])


def with_padding(config: Config, tensors: Mapping[str, Tensor], multiple: int) -> Model:
    """The model with as many rows, zeros behind the last id, as make a multiple; `vocab_size` stays what it is.

    Raises ConfigError if `multiple` is not a whole number from 1.
    """
    if type(multiple) is not int or multiple < 1:
        raise ConfigError(f"pad_vocab_to_multiple_of: found {multiple!r}, expected a whole number from 1")
    return _with_rows(config, tensors, -(-config["vocab_size"] // multiple) * multiple)


def _with_rows(config: Config, tensors: Mapping[str, Tensor], rows: int) -> Model:
    def resized(tensor: Tensor) -> Tensor:
        read = partial(_read, tensor, config["vocab_size"], rows)
        return replace(tensor, shape=(rows, *tensor.shape[1:]), read=read)

    changed = {
        name: resized(tensor) if name in _NAMES and tensor.shape[0] != rows else tensor
        for name, tensor in tensors.items()
    }
    return {**config, "padded_vocab_size": rows}, changed


def _read(tensor: Tensor, vocab_size: int, rows: int) -> Words:
    words = tensor.read()[:vocab_size]
    if rows == vocab_size:
        return words
    return np.concatenate([words, np.zeros((rows - vocab_size, *words.shape[1:]), words.dtype)])
