"""From raw text to verified MindRecord, and a loader that never repeats or loses a sample."""

from ms_dataprep.__about__ import __version__

__all__ = ["__version__"]
