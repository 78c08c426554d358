"""How the loop, central work and the flows tell how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pipeline.executors.base import Map


class Progress(Protocol):
    """Is told how far a pass is."""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Note that `done` of `total` tasks are back (0 = unknown), having seen `rows` rows.

        Passes whose labels agree up to the first comma follow each other in one fit. Central work
        sees no rows.
        """


def silent(label: str, done: int, total: int, rows: int) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class ToldMap:
    """A map for central work, which `labelled` lets tell how many of its items are back.

    Attributes
    ----------
    map_items
        Where items run.
    progress
        Is told after each.
    label, total
        What the items are and how many; without a label nothing is told.
    """

    map_items: Map
    progress: Progress
    label: str = ""
    total: int = 0

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Map, results in the items' order."""
        found = self.map_items(function, items)
        return self._counted(found) if self.label else found

    def _counted(self, found: Iterator[Any]) -> Iterator[Any]:
        self.progress(self.label, 0, self.total, 0)
        for done, result in enumerate(found, 1):
            self.progress(self.label, done, self.total, 0)
            yield result


def labelled(map_items: Map, label: str, total: int) -> Map:
    """Say what the next `total` items are, where anybody listens."""
    if not isinstance(map_items, ToldMap):
        return map_items
    return replace(map_items, label=label, total=total)


def in_this_process(map_items: Map) -> Map:
    """Map here, one item after the other, and tell it as `map_items` would."""
    return replace(map_items, map_items=map) if isinstance(map_items, ToldMap) else map
