"""From raw text to verified MindRecord, and a loader that never repeats or loses a sample."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ms_dataprep.__about__ import __version__
from ms_dataprep.config import DataConfig, TokenizerConfig, from_mapping
from ms_dataprep.errors import ConfigError, DataprepError, DatasetError, SourceError, TokenizerError

if TYPE_CHECKING:
    from ms_dataprep.batches import SpecialIds, make_batch
    from ms_dataprep.loader import Loader, load, load_mixture
    from ms_dataprep.manifest import Manifest, read_manifest
    from ms_dataprep.masking import MaskingConfig
    from ms_dataprep.pipeline import build
    from ms_dataprep.stock import StockFormat
    from ms_dataprep.tokenizer import Tokenizer, load_tokenizer
    from ms_dataprep.tokenizer_training import train_tokenizer
    from ms_dataprep.verification import Verification, verify

__all__ = [
    "ConfigError",
    "DataConfig",
    "DataprepError",
    "DatasetError",
    "Loader",
    "Manifest",
    "MaskingConfig",
    "SourceError",
    "SpecialIds",
    "StockFormat",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerError",
    "Verification",
    "__version__",
    "build",
    "from_mapping",
    "load",
    "load_mixture",
    "load_tokenizer",
    "make_batch",
    "read_manifest",
    "train_tokenizer",
    "verify",
]

# Loaded on first use, so that `import ms_dataprep` and `ms-dataprep --help` stay light.
_HOMES = {
    "Loader": "loader",
    "Manifest": "manifest",
    "MaskingConfig": "masking",
    "SpecialIds": "batches",
    "StockFormat": "stock",
    "Tokenizer": "tokenizer",
    "Verification": "verification",
    "build": "pipeline",
    "load": "loader",
    "load_mixture": "loader",
    "load_tokenizer": "tokenizer",
    "make_batch": "batches",
    "read_manifest": "manifest",
    "train_tokenizer": "tokenizer_training",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ms_dataprep' has no attribute {name!r}")
    return getattr(import_module(f"ms_dataprep.{_HOMES[name]}"), name)
