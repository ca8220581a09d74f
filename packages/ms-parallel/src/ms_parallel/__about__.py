"""The version of ms_parallel, read by the build."""

__version__ = "0.1.0"
