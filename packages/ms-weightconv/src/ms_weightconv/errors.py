"""The errors of ms_weightconv: one root, so that callers can catch them all."""


class WeightConvError(Exception):
    """Root of all errors that ms_weightconv raises on purpose."""


class ConfigError(WeightConvError):
    """A configuration value is unknown, of the wrong type, impossible, or of a kind that cannot be converted."""


class SourceError(WeightConvError):
    """A file that was to be read is missing, damaged, hostile, or of a kind that is not read."""


class RuleError(WeightConvError):
    """Tensors and rules do not match: a name, shape or dtype is missing, extra or different."""


class TargetError(WeightConvError):
    """The output cannot be written, or came back different from what was written."""


class ProofError(WeightConvError):
    """Two folders that should hold the same weights do not."""
