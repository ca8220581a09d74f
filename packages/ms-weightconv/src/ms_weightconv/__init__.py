"""Hugging Face checkpoints to MindSpore and back, proven tensor by tensor."""

from ms_weightconv.__about__ import __version__

__all__ = ["__version__"]
