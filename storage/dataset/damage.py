"""What the errors of reading a dataset mean: damage, or a machine that is short of something."""

from __future__ import annotations

from storage.errors import DamagedChunkError, DataError
from storage.stores.locations import AnyPath
from storage.stores.object_store import make_store_error


def make_unreadable_error(what: str, error: Exception) -> DataError:
    """Tell damage from a machine that is short of something, or may not read."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, OSError | MemoryError):
        return DataError(f"{what} cannot be read ({reason}).")
    return DamagedChunkError(f"{what} is damaged ({reason}). Ingest the dataset again.")


def make_damaged_dataset_error(folder: AnyPath, error: Exception) -> DataError:
    """Say that a dataset cannot be opened, or that its store does not answer."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return make_store_error(str(folder), error) or DataError(
        f"{folder}: Expected a whole dataset, got a damaged one ({reason}). "
        "Ingest the dataset again."
    )
