"""A training loop for MindSpore whose every number can be trusted."""

from ms_trainloop.__about__ import __version__

__all__ = ["__version__"]
