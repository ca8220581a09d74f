"""Hugging Face checkpoints to MindSpore and back, proven tensor by tensor."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ms_weightconv.__about__ import __version__

if TYPE_CHECKING:
    from ms_weightconv.config import ConvertConfig, from_mapping
    from ms_weightconv.conversion import convert
    from ms_weightconv.errors import WeightConvError
    from ms_weightconv.families import FAMILIES
    from ms_weightconv.proof import prove
    from ms_weightconv.report import Report

__all__ = ["FAMILIES", "ConvertConfig", "Report", "WeightConvError", "__version__", "convert", "from_mapping", "prove"]

# Loaded when first used, so that the command line answers --help without numpy.
_HOMES = {
    "ConvertConfig": "config",
    "FAMILIES": "families",
    "Report": "report",
    "WeightConvError": "errors",
    "convert": "conversion",
    "from_mapping": "config",
    "prove": "proof",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
