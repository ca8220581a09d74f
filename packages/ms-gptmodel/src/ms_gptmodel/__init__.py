"""GPT- and Llama-style language models for MindSpore, readable like the paper."""

from ms_gptmodel.__about__ import __version__

__all__ = ["__version__"]
