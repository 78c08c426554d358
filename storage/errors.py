"""The error a person at the command line is meant to read."""


class DataError(ValueError):
    """The data at hand cannot be used; the message says what, where and what to do."""


class Busy(DataError):
    """Another process is writing there."""
