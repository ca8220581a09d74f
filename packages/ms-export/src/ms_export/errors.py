"""The errors of ms_export: one root, so that callers can catch them all."""


class ExportError(Exception):
    """Root of all errors that ms_export raises on purpose."""


class ConfigError(ExportError):
    """A configuration value is unknown, of the wrong type, or impossible."""


class ModelError(ExportError):
    """The cells or parameters handed to `build` do not follow the cached call of contract `model`."""


class BundleError(ExportError):
    """A bundle on disk is incomplete, changed, of another version, or cannot be loaded."""


class ParityError(ExportError):
    """A bundle's graphs do not give the source model's logits."""


class PromptError(ExportError):
    """A prompt or a generation option is one that the bundle cannot serve."""


class MissingExtraError(ExportError):
    """A feature needs an optional dependency that is not installed."""
