"""The error a person at the command line is meant to read."""


class DataError(ValueError):
    """The data at hand cannot be used; the message says what, where and what to do."""


class FolderInUseError(DataError):
    """Another process is writing there."""


class DamagedChunkError(DataError):
    """A chunk of a dataset is missing, or is not what was written."""


class StoreUnreachableError(DataError):
    """An object store refuses, or does not answer: what lies there is not known."""
