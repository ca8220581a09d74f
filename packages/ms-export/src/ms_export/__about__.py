"""The version of ms_export, read by the build."""

__version__ = "0.1.0"
