"""MindSpore models as self-contained bundles: export, parity check, generation, serving."""

from importlib import import_module
from typing import TYPE_CHECKING

from ms_export.__about__ import __version__
from ms_export.config import ExportConfig, from_mapping
from ms_export.model import CachedModel

if TYPE_CHECKING:
    from ms_export.builder import build
    from ms_export.generation import Generation, Token
    from ms_export.parity import CheckResult, check
    from ms_export.runtime import Runtime
    from ms_export.text import TextPiece

__all__ = [
    "CachedModel",
    "CheckResult",
    "ExportConfig",
    "Generation",
    "Runtime",
    "TextPiece",
    "Token",
    "__version__",
    "build",
    "check",
    "from_mapping",
]

_HOMES = {
    "CheckResult": "parity",
    "Generation": "generation",
    "Runtime": "runtime",
    "TextPiece": "text",
    "Token": "generation",
    "build": "builder",
    "check": "parity",
}


def __getattr__(name: str) -> object:
    """Imports what needs MindSpore when it is asked for: importing MindSpore takes seconds."""
    if name in _HOMES:
        return getattr(import_module(f"ms_export.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'ms_export' has no attribute {name!r}")
