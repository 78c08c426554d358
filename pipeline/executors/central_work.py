"""Central work: maps that report named stages and keep their results.

The central step of a model does the same in every run. So a run that was killed continues by the
same calls: items whose results were kept are not computed again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from inspect import isroutine
from itertools import islice
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import MapFunction
from pipeline.executors.progress import Progress, ignore_progress

_SECONDS_BETWEEN_SAVES = 2.0
_NUMBERS, _OPTIONAL = (bool, int, float), (Union, UnionType)


class KeptResult(NamedTuple):
    """The result of an item.

    Attributes
    ----------
    label
        Stage and label of the map.
    layout
        Type and shape of each array.
    content
        The bytes of all arrays.
    """

    label: str
    layout: Sequence[Sequence[Any]]
    content: bytes


class KeptResults(NamedTuple):
    """Storage of the results of central work.

    `load` returns the parts that were saved of the work with a key, and `save` stores the part with
    the next number.
    """

    load: Callable[[str], Sequence[Sequence[KeptResult]]] = lambda key: ()
    save: Callable[[str, int, Sequence[KeptResult]], None] = lambda key, number, part: None


NO_KEPT_RESULTS = KeptResults()


class _CentralWork:
    """Progress and results of the central work with a key."""

    def __init__(self, progress: Progress, kept: KeptResults, key: str) -> None:
        self._progress, self._kept, self._key = progress, kept, key
        self._earlier: list[KeptResult] | None = None  # loaded by the first map
        self._new: list[KeptResult] = []
        self._n_parts, self._saved = 0, time.monotonic()
        self._stage, self._report = "", ("", 0, 0)
        self.n_done_by_stage: dict[str, int] = {}

    def take_kept(self, label: str, total: int) -> list[KeptResult]:
        """Return the kept results of the first items of the next map."""
        if self._earlier is None:
            parts = self._kept.load(self._key)
            self._earlier, self._n_parts = [own for part in parts for own in part], len(parts)
        n = 0
        while n < min(total, len(self._earlier)) and self._earlier[n].label == label:
            n += 1
        kept, rest = self._earlier[:n], self._earlier[n:]
        self._earlier = rest if n == total else []  # of a processor that rounds differently
        return kept

    def keep(self, result: KeptResult) -> None:
        """Keep a new result; they are saved together, because each part takes milliseconds."""
        self._new.append(result)
        if time.monotonic() - self._saved >= _SECONDS_BETWEEN_SAVES:
            self._kept.save(self._key, self._n_parts, self._new)
            self._new, self._n_parts, self._saved = [], self._n_parts + 1, time.monotonic()

    def report(self, stage: str, label: str, done: int, total: int) -> None:
        """Report progress; if another stage begins, report the end of the last one first."""
        if stage != self._stage:
            self.end_stage()
        self._stage, self._report = stage, (label, done, total)
        self._progress(label, done, total, 0)

    def end_stage(self) -> None:
        """Report the end of a stage whose total was unknown."""
        label, done, total = self._report
        if done and not total:
            self._progress(label, done, done, 0)


@dataclass(frozen=True)
class CentralMap:
    """A map for central work that reports and keeps results once `label_map` has named its items.

    Attributes
    ----------
    map_items
        Runs the items.
    work
        The work that the map belongs to.
    stages
        Names of the stages of the work, in their order.
    stage, stage_total
        The current stage, and the number of its items; 0 if that is not known.
    label, total
        Name and number of the items.
    """

    map_items: MapFunction
    work: _CentralWork
    stages: tuple[str, ...] = ()
    stage: str = ""
    stage_total: int = 0
    label: str = ""
    total: int = 0

    def __call__(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """Yield the results in the order of the items."""
        run = self._iter_results if self.total else self.map_items
        return run(function, items)

    def _iter_results(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        kind, label, work = _find_result_type(function), self._format_label(), self.work
        total, n_done = self.total, 0
        if self.stage:
            total, n_done = self.stage_total, work.n_done_by_stage.get(self.stage, 0)
        kept = work.take_kept(label, self.total)
        n_done += len(kept)
        work.report(self.stage, label, n_done, total)
        for result in kept:
            yield _rebuild(kind, _iter_arrays(result))
        for value in self.map_items(function, islice(items, len(kept), None)):
            arrays = [*_flatten(kind, value)]
            layout = [[array.dtype.str, list(array.shape)] for array in arrays]
            content = b"".join(array.tobytes() for array in arrays)
            work.keep(KeptResult(label, layout, content))
            n_done += 1
            work.report(self.stage, label, n_done, total)
            yield _rebuild(kind, iter(arrays))
        work.n_done_by_stage[self.stage] = n_done

    def _format_label(self) -> str:
        stage = self.stage
        if stage and len(self.stages) > 1:
            stage = f"stage {self.stages.index(stage) + 1} of {len(self.stages)}: {stage}"
        return ", ".join(part for part in (stage, self.label) if part)


@contextmanager
def open_central_work(
    map_items: MapFunction,
    progress: Progress = ignore_progress,
    kept: KeptResults = NO_KEPT_RESULTS,
    key: str = "",
) -> Iterator[CentralMap]:
    """Yield a map for the central work with a key, see `CentralMap`."""
    work = _CentralWork(progress, kept, key)
    yield CentralMap(map_items, work)
    work.end_stage()


def plan_stages(map_items: MapFunction, stages: Sequence[str]) -> MapFunction:
    """Name the stages of central work in their order, if the map reports progress."""
    if not isinstance(map_items, CentralMap):
        return map_items
    return replace(map_items, stages=tuple(stages))


def enter_stage(map_items: MapFunction, stage: str, total: int = 0) -> MapFunction:
    """Enter a stage that was planned; `total` is the number of its items, 0 if that is not known.

    The stage remains the same if this one was not planned.
    """
    if not isinstance(map_items, CentralMap) or stage not in map_items.stages:
        return map_items
    return replace(map_items, stage=stage, stage_total=total)


def label_map(map_items: MapFunction, label: str, total: int) -> MapFunction:
    """Name the next `total` items of a map, if it reports progress.

    Their results are kept. The annotation of the function that returns them says what they consist
    of: arrays, numbers, and tuples and dataclasses of these.
    """
    if not isinstance(map_items, CentralMap):
        return map_items
    return replace(map_items, label=label, total=total)


def make_local_map(map_items: MapFunction) -> MapFunction:
    """Return a serial map that reports and keeps as `map_items` does."""
    return replace(map_items, map_items=map) if isinstance(map_items, CentralMap) else map


def _find_result_type(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    is_object = not isroutine(function)
    return get_type_hints(type(function).__call__ if is_object else function)["return"]


def _list_part_types(kind: Any, n_parts: int) -> list[Any] | None:
    """Return the types of the parts of a value; None if it is an array or a number."""
    own = get_args(kind)
    if get_origin(kind) in _OPTIONAL or own[1:] == (...,):
        return [own[0]] * n_parts
    if get_origin(kind) is tuple:
        return list(own)
    has_fields = is_dataclass(kind) or hasattr(kind, "_fields")
    return list(get_type_hints(kind).values()) if has_fields else None


def _flatten(kind: Any, value: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a value in C order; before those of its parts, the number of parts."""
    if _list_part_types(kind, 0) is None:
        yield np.asarray(value, order="C")
        return
    if get_origin(kind) in _OPTIONAL:
        value = [] if value is None else [value]
    elif get_origin(kind) is not tuple:
        value = [getattr(value, name) for name in get_type_hints(kind)]
    yield np.array(len(value))
    for part_kind, part in zip(_list_part_types(kind, len(value)) or (), value, strict=True):
        yield from _flatten(part_kind, part)


def _rebuild(kind: Any, arrays: Iterator[NDArray[Any]]) -> Any:
    """Return the value that `_flatten` took apart."""
    first = next(arrays)
    if _list_part_types(kind, 0) is None:
        return kind(first.item()) if kind in _NUMBERS else first
    types = _list_part_types(kind, first.item()) or ()
    parts = [_rebuild(part_kind, arrays) for part_kind in types]
    if get_origin(kind) in _OPTIONAL:
        return parts[0] if parts else None
    return tuple(parts) if get_origin(kind) is tuple else kind(*parts)


def _iter_arrays(result: KeptResult) -> Iterator[NDArray[Any]]:
    start = 0
    for dtype, shape in result.layout:
        array = np.frombuffer(result.content, dtype, math.prod(shape), start).reshape(shape)
        start += array.nbytes
        yield array.copy()
