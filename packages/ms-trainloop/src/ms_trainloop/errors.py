"""The errors of ms_trainloop: one root, so that callers can catch them all."""


class TrainLoopError(Exception):
    """Root of all errors that ms_trainloop raises on purpose."""


class ConfigError(TrainLoopError):
    """A configuration value is unknown, of the wrong type, or impossible."""


class BatchError(TrainLoopError):
    """A batch breaks the contract `batch`, or there is none; the message lists every finding."""


class ResumeError(TrainLoopError):
    """A saved state does not fit this run; the message lists every difference, and nothing was applied."""


class DivergenceError(TrainLoopError):
    """Too many steps in a row had a loss or a gradient that is not finite."""


class MetricsError(TrainLoopError):
    """A metrics file is missing, of another format, or damaged."""


class PreflightError(TrainLoopError):
    """The rehearsal before training found what makes it pointless; the message lists every such finding."""


class ForensicsError(TrainLoopError):
    """A record of a step that was not finite is missing, of another format, or does not fit the model."""


class MissingExtraError(TrainLoopError):
    """An optional dependency is not installed; the message ends with the line that installs it."""


class Interrupted(TrainLoopError):  # noqa: N818 - not a fault of the run: it was asked to stop and saved
    """SIGTERM, SIGINT or `max_minutes` ended the run after a whole step; with a checkpointer the state was saved.

    Attributes:
        code: The exit code a script should end with: 143 for SIGTERM, 130 for SIGINT (128 + signal), and 75 for
            `max_minutes` (EX_TEMPFAIL of sysexits.h: run it again).
        step: The number of steps done.
    """

    def __init__(self, message: str, *, code: int, step: int) -> None:
        """Keeps the exit code and the step beside the message."""
        super().__init__(message)
        self.code = code
        self.step = step
