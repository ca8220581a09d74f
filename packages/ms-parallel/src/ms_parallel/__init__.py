"""Ranks, launch, plans and checks for distributed MindSpore training."""

from ms_parallel.__about__ import __version__

__all__ = ["__version__"]
