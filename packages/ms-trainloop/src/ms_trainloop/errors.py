"""The errors of ms_trainloop: one root, so that callers can catch them all."""


class TrainLoopError(Exception):
    """Root of all errors that ms_trainloop raises on purpose."""


class ConfigError(TrainLoopError):
    """A configuration value is unknown, of the wrong type, or impossible."""
