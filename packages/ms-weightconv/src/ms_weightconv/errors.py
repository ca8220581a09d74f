"""The errors of ms_weightconv: one root, so that callers can catch them all."""


class WeightConvError(Exception):
    """Root of all errors that ms_weightconv raises on purpose."""


class ConfigError(WeightConvError):
    """A configuration value is unknown, of the wrong type, or impossible."""
