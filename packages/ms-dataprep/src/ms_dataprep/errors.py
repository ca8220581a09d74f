"""The errors of ms_dataprep: one root, so that callers can catch them all."""


class DataprepError(Exception):
    """Root of all errors that ms_dataprep raises on purpose."""


class ConfigError(DataprepError):
    """A configuration value is unknown, of the wrong type, or impossible."""


class SourceError(DataprepError):
    """An input file, folder or glob cannot be used, or a line is bad and errors are not to be skipped."""


class TokenizerError(DataprepError):
    """A tokenizer file cannot be used for a dataset."""


class DatasetError(DataprepError):
    """A dataset folder is unfinished, damaged, or does not fit what is asked of it."""


class UnfinishedError(DataprepError):
    """A build was interrupted; what it has done is kept, and `resume` goes on from there."""
