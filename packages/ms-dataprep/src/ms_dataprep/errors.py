"""The errors of ms_dataprep: one root, so that callers can catch them all."""


class DataprepError(Exception):
    """Root of all errors that ms_dataprep raises on purpose."""


class ConfigError(DataprepError):
    """A configuration value is unknown, of the wrong type, or impossible."""
