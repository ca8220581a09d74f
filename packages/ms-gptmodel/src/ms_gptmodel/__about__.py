"""The version of ms_gptmodel, read by the build."""

__version__ = "0.2.0"
