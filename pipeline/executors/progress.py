"""Progress of passes and of central work."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a pass."""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Report that `done` of `total` tasks (0 = unknown), with `rows` rows, have finished.

        Labels of the passes of one fit, and of one stage of central work, agree up to the first
        comma. Central work has no rows.
        """


def ignore_progress(label: str, done: int, total: int, rows: int) -> None:
    """Do nothing."""


def format_amount(done: int, total: int, rows: int) -> str:
    """Format what has been done, such as `40%`, or as a number if the total is unknown."""
    if total:
        return f"{done / total:.0%}"
    return f"{rows:,} rows" if rows else f"{done:,} steps"
