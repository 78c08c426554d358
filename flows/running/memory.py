"""Whether a run fits into memory."""

from __future__ import annotations

import psutil

from pipeline.errors import FitError


def check_memory(need: int, n_features: int) -> None:
    """Refuse a run that needs more bytes than are free.

    Raises
    ------
    FitError
        With both numbers.
    """
    from distributed.system import MEMORY_LIMIT  # takes its time to be imported

    free = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    if need > free:
        raise FitError(
            f"Expected {need / 1e9:.1f} GB of free memory for {n_features} features, "
            f"got {free / 1e9:.1f} GB. Use a larger machine or fewer features."
        )
