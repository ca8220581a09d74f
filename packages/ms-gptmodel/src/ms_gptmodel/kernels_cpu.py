"""Kernels for CPU (still the plain ones)."""

from ms_gptmodel.kernels_plain import *  # noqa: F403
