"""The errors of ms_export: one root, so that callers can catch them all."""


class ExportError(Exception):
    """Root of all errors that ms_export raises on purpose."""


class ConfigError(ExportError):
    """A configuration value is unknown, of the wrong type, or impossible."""
