"""GPT- and Llama-style language models for MindSpore, readable like the paper."""

import importlib
from typing import TYPE_CHECKING, Any

from ms_gptmodel.__about__ import __version__
from ms_gptmodel.config import ModelConfig, load_config
from ms_gptmodel.description import DescriptionConfig, describe
from ms_gptmodel.errors import ConfigError, GptModelError, InputError, WeightsError
from ms_gptmodel.huggingface import from_huggingface, load_huggingface_config
from ms_gptmodel.ids import check_ids
from ms_gptmodel.presets import PRESETS, preset
from ms_gptmodel.sampling import GenerationConfig

if TYPE_CHECKING:
    from ms_gptmodel.cache import CachedDecoder
    from ms_gptmodel.generation import Generation, Piece, generate, stream
    from ms_gptmodel.loss import TokenLoss, token_loss
    from ms_gptmodel.model import LanguageModel
    from ms_gptmodel.weights import load_weights, named_parameters, read_weights

__all__ = [
    "PRESETS",
    "CachedDecoder",
    "ConfigError",
    "DescriptionConfig",
    "Generation",
    "GenerationConfig",
    "GptModelError",
    "InputError",
    "LanguageModel",
    "ModelConfig",
    "Piece",
    "TokenLoss",
    "WeightsError",
    "__version__",
    "check_ids",
    "describe",
    "from_huggingface",
    "generate",
    "load_config",
    "load_huggingface_config",
    "load_weights",
    "named_parameters",
    "preset",
    "read_weights",
    "stream",
    "token_loss",
]

# Imported on first use: MindSpore takes seconds, and the config must be readable without it.
_LAZY = {
    "CachedDecoder": "cache",
    "Generation": "generation",
    "LanguageModel": "model",
    "Piece": "generation",
    "TokenLoss": "loss",
    "generate": "generation",
    "load_weights": "weights",
    "named_parameters": "weights",
    "read_weights": "weights",
    "stream": "generation",
    "token_loss": "loss",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # All at once and for good: MindSpore's graph parser looks names up in the module's dictionary only.
    values = {key: getattr(importlib.import_module(f"ms_gptmodel.{module}"), key) for key, module in _LAZY.items()}
    globals().update(values)
    return values[name]
