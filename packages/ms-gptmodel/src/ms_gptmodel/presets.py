"""Configs of published models by name: facts from their papers and config files, as plain values."""

from typing import Any

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.errors import ConfigError
from ms_gptmodel.presets_gpt import GPT_PRESETS
from ms_gptmodel.presets_llama import LLAMA_PRESETS

PRESETS: dict[str, dict[str, Any]] = {**GPT_PRESETS, **LLAMA_PRESETS}


def preset(name: str, **changes: Any) -> ModelConfig:
    """The config of the published model `name`, with `changes` on top.

    Raises ConfigError, naming the known ones, when there is no such preset.
    """
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r}: unknown; known: {', '.join(PRESETS)}")
    return ModelConfig.from_mapping({**PRESETS[name], **changes}, f"preset {name}")
