"""What the errors of reading a dataset mean: damage, or a machine that is short of something."""

from __future__ import annotations

from storage.errors import Damaged, DataError
from storage.stores.locations import Place
from storage.stores.object_store import store_error


def unreadable(what: str, error: Exception) -> DataError:
    """Tell damage from a machine that is short of something, or may not read."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, OSError | MemoryError):
        return DataError(f"{what} cannot be read ({reason}).")
    return Damaged(f"{what} is damaged ({reason}). Ingest the dataset again.")


def damaged_dataset(folder: Place, error: Exception) -> DataError:
    """Say that a dataset cannot be opened, or that its store does not answer."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return store_error(str(folder), error) or DataError(
        f"{folder}: Expected a whole dataset, got a damaged one ({reason}). "
        "Ingest the dataset again."
    )
