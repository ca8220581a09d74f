"""The errors of ms_parallel: one root, so that callers can catch them all."""


class ParallelError(Exception):
    """Root of all errors that ms_parallel raises on purpose."""


class ConfigError(ParallelError):
    """A configuration value is unknown, of the wrong type, or impossible."""
