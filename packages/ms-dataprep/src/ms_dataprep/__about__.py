"""The version of ms_dataprep, read by the build."""

__version__ = "0.2.0"
