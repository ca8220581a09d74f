"""Hugging Face checkpoints to MindSpore and back, proven tensor by tensor."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ms_weightconv.__about__ import __version__

if TYPE_CHECKING:
    from ms_weightconv.config import ConvertConfig, from_mapping
    from ms_weightconv.conversion import convert
    from ms_weightconv.divergence import Outputs, compare, find_causes
    from ms_weightconv.errors import WeightConvError
    from ms_weightconv.families import FAMILIES
    from ms_weightconv.proof import prove
    from ms_weightconv.report import Report
    from ms_weightconv.tablefile import read_table

__all__ = [
    "FAMILIES",
    "ConvertConfig",
    "Outputs",
    "Report",
    "WeightConvError",
    "__version__",
    "compare",
    "convert",
    "find_causes",
    "from_mapping",
    "prove",
    "read_table",
]

# Loaded when first used, so that the command line answers --help without numpy.
_HOMES = {
    "ConvertConfig": "config",
    "FAMILIES": "families",
    "Outputs": "divergence",
    "Report": "report",
    "WeightConvError": "errors",
    "compare": "divergence",
    "convert": "conversion",
    "find_causes": "divergence",
    "from_mapping": "config",
    "prove": "proof",
    "read_table": "tablefile",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
