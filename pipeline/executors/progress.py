"""Progress of passes and of central work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pipeline.executors.base import MapFunction


class Progress(Protocol):
    """Receives the progress of a pass."""

    def __call__(self, label: str, done: int, total: int, rows: int) -> None:
        """Report that `done` of `total` tasks (0 = unknown), with `rows` rows, have finished.

        Labels of the passes of one fit agree up to the first comma. Central work has no rows.
        """


def ignore_progress(label: str, done: int, total: int, rows: int) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class ProgressMap:
    """A map for central work that reports progress after each item, once `label_map` has named it.

    `map_items` runs the items. `label` and `total` are the name and the number of the items;
    without a label, no progress is reported.
    """

    map_items: MapFunction
    progress: Progress
    label: str = ""
    total: int = 0

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the order of the items."""
        results = self.map_items(function, items)
        return self._iter_with_progress(results) if self.label else results

    def _iter_with_progress(self, results: Iterator[Any]) -> Iterator[Any]:
        self.progress(self.label, 0, self.total, 0)
        for done, result in enumerate(results, 1):
            self.progress(self.label, done, self.total, 0)
            yield result


def label_map(map_items: MapFunction, label: str, total: int) -> MapFunction:
    """Name the next `total` items of a map, if it reports progress."""
    if not isinstance(map_items, ProgressMap):
        return map_items
    return replace(map_items, label=label, total=total)


def make_local_map(map_items: MapFunction) -> MapFunction:
    """Return a serial map that reports progress as `map_items` does."""
    return replace(map_items, map_items=map) if isinstance(map_items, ProgressMap) else map
