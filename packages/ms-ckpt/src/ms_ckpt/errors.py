"""The errors of ms_ckpt: one root, so that callers can catch them all."""


class CkptError(Exception):
    """Root of all errors that ms_ckpt raises on purpose."""


class ConfigError(CkptError):
    """A configuration value is unknown, of the wrong type, or impossible."""


class ValuesError(CkptError):
    """A value or tensor cannot be stored exactly; the message names the path to it."""


class SaveError(CkptError):
    """A save failed (full disk, read-only folder, ...); everything saved earlier is untouched."""


class StepExistsError(SaveError):
    """The step is already saved and valid."""


class InvalidCheckpointError(CkptError):
    """A checkpoint folder is unfinished or damaged; the message names the folder, the file and what is wrong."""


class MismatchError(CkptError):
    """A checkpoint does not hold what was expected; the message lists every difference."""
