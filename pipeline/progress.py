"""How the loop and the flows tell how far they are."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Is told how far a pass is."""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Note that `done` of `total` tasks are back (0 = unknown), having seen `rows` rows."""


def silent(label: str, done: int, total: int, rows: int) -> None:
    """Say nothing."""
