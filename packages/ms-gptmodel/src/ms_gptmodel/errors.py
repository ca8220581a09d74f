"""The errors of ms_gptmodel: one root, so that callers can catch them all."""


class GptModelError(Exception):
    """Root of all errors that ms_gptmodel raises on purpose."""


class ConfigError(GptModelError):
    """A configuration value is unknown, of the wrong type, or impossible."""
