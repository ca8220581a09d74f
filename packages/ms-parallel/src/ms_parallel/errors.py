"""The errors of ms_parallel: one root, so that callers can catch them all."""


class ParallelError(Exception):
    """Root of all errors that ms_parallel raises on purpose."""


class ConfigError(ParallelError):
    """A configuration value is unknown, of the wrong type, or impossible."""


class RankError(ParallelError):
    """The environment, or the other ranks, contradict what this process believes about its rank."""


class PlanError(ParallelError):
    """A plan is impossible for its model or world, or a plan file is broken; the message lists everything."""


class LaunchError(ParallelError):
    """A job could not be started."""


class DivergedError(ParallelError):
    """Ranks that must hold equal weights do not."""
