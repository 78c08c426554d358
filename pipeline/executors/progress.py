"""How the loop, central work and the flows tell how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pipeline.executors.base import MapFunction


class Progress(Protocol):
    """Is told how far a pass is."""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Note that `done` of `total` tasks are back (0 = unknown), having seen `rows` rows.

        Passes whose labels agree up to the first comma follow each other in one fit. Central work
        sees no rows.
        """


def ignore_progress(label: str, done: int, total: int, rows: int) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class ProgressMap:
    """A map for central work, which `label_map` lets tell how many of its items are back.

    Attributes
    ----------
    map_items
        Where items run.
    progress
        Is told after each.
    label, total
        What the items are and how many; without a label nothing is told.
    """

    map_items: MapFunction
    progress: Progress
    label: str = ""
    total: int = 0

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Map, results in the items' order."""
        found = self.map_items(function, items)
        return self._iter_with_progress(found) if self.label else found

    def _iter_with_progress(self, found: Iterator[Any]) -> Iterator[Any]:
        self.progress(self.label, 0, self.total, 0)
        for done, result in enumerate(found, 1):
            self.progress(self.label, done, self.total, 0)
            yield result


def label_map(map_items: MapFunction, label: str, total: int) -> MapFunction:
    """Say what the next `total` items are, where anybody listens."""
    if not isinstance(map_items, ProgressMap):
        return map_items
    return replace(map_items, label=label, total=total)


def make_local_map(map_items: MapFunction) -> MapFunction:
    """Map here, one item after the other, and tell it as `map_items` would."""
    return replace(map_items, map_items=map) if isinstance(map_items, ProgressMap) else map
