"""The version of ms_trainloop, read by the build."""

__version__ = "0.1.0"
