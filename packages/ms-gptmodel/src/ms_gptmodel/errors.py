"""The errors of ms_gptmodel: one root, so that callers can catch them all."""


class GptModelError(Exception):
    """Root of all errors that ms_gptmodel raises on purpose."""


class ConfigError(GptModelError):
    """A configuration value is unknown, of the wrong type, or impossible."""


class InputError(GptModelError):
    """Token ids, positions or a prompt do not fit the model."""


class WeightsError(GptModelError):
    """Weights are missing, unexpected, or of another shape than the model's."""
