"""Checkpoints that are never torn, never trusted blindly, and load anywhere."""

from ms_ckpt.__about__ import __version__

__all__ = ["__version__"]
