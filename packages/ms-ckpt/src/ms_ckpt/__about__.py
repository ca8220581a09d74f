"""The version of ms_ckpt, read by the build."""

__version__ = "0.2.0"
