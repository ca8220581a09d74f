"""The version of ms_weightconv, read by the build."""

__version__ = "0.1.0"
