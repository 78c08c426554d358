"""How the loop and the flows tell how far they are."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Is told how far a pass is."""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Note that `done` of `total` tasks are back (0 = unknown), having seen `rows` rows.

        Passes whose labels agree up to the first comma follow each other in one fit.
        """


def silent(label: str, done: int, total: int, rows: int) -> None:
    """Say nothing."""
