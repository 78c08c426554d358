"""Central work that is interrupted continues with the items that are not kept."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.executors import central_work
from pipeline.executors.central_work import (
    KeptResult,
    KeptResults,
    enter_stage,
    label_map,
    open_central_work,
    plan_stages,
)


@dataclass(frozen=True)
class Part:
    layers: tuple[NDArray[np.float64], ...]
    rates: NDArray[np.float64] | None = None


class Result(NamedTuple):
    part: Part
    pair: tuple[int, bool]
    score: float
    best: Part | None


class Interrupted(Exception):
    pass


calls: list[int] = []


def compute(item: int) -> Result:
    """Return arrays in Fortran order, and values that a store of parameters would refuse."""
    if item in calls:
        raise Interrupted
    calls.append(item)
    square = np.asfortranarray(np.arange(item * item, dtype=np.float64).reshape(item, item))
    part = Part((square, np.array(np.nan), np.zeros((0, 2))))
    return Result(part, (item, item > 2), -np.inf, Part((), square.T) if item % 2 else None)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> KeptResults:
    monkeypatch.setattr(central_work, "_SECONDS_BETWEEN_SAVES", 0.0)
    parts: list[Sequence[KeptResult]] = []
    calls.clear()
    return KeptResults(lambda key: [*parts], lambda key, number, part: parts.insert(number, part))


def run_stages(kept: KeptResults, first: str, reports: list[tuple[str, int, int]]) -> list[Result]:
    def report(label: str, done: int, total: int, rows: int) -> None:
        reports.append((label, done, total))

    with open_central_work(map, report, kept) as map_items:
        planned = plan_stages(map_items, [first, "fit"])
        results = list(label_map(enter_stage(planned, first), "", 2)(compute, [1, 2]))
        return results + list(label_map(enter_stage(planned, "fit", 3), "", 3)(compute, [3, 4, 5]))


def describe(result: Result) -> str:
    orders = [a.flags.c_contiguous for a in result.part.layers]
    return f"{result!r} {orders} {[type(a) for a in (*result, *result.pair)]}"


def test_items_that_are_kept_are_not_computed_again(kept: KeptResults) -> None:
    expected = [*map(describe, run_stages(KeptResults(), "choice", []))]
    calls[:] = [4]
    with suppress(Interrupted):
        run_stages(kept, "choice", [])
    assert calls == [4, 1, 2, 3]
    calls.clear()
    reports: list[tuple[str, int, int]] = []
    resumed = run_stages(kept, "choice", reports)
    assert calls == [4, 5]
    assert [*map(describe, resumed)] == expected
    assert reports == [
        *[("stage 1 of 2: choice", 2, 0), ("stage 1 of 2: choice", 2, 2)],
        *(("stage 2 of 2: fit", done, 3) for done in (1, 2, 3)),
    ]


def test_results_of_other_work_are_not_used(kept: KeptResults) -> None:
    expected = run_stages(kept, "choice", [])
    calls.clear()
    assert [*map(describe, run_stages(kept, "search", []))] == [*map(describe, expected)]
    assert calls == [1, 2, 3, 4, 5]
