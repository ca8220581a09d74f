"""The errors of ms_ckpt: one root, so that callers can catch them all."""


class CkptError(Exception):
    """Root of all errors that ms_ckpt raises on purpose."""


class ConfigError(CkptError):
    """A configuration value is unknown, of the wrong type, or impossible."""
