"""MindSpore models as self-contained bundles: export, parity check, generation, serving."""

from ms_export.__about__ import __version__

__all__ = ["__version__"]
