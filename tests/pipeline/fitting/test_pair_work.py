"""Pair work: every row against all rows, as a dense matrix of distances tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.executors.cancellation import Unwanted, while_wanted
from pipeline.executors.serial import SerialExecutor
from pipeline.executors.threads import ThreadsExecutor
from pipeline.fitting.loop import fit
from pipeline.fitting.pair_work import Pairs, in_memory
from pipeline.learning.convergence import ByPasses, Convergence
from pipeline.models.state import FitState
from pipeline.passes.row_ranges import Described, rows_by_chunk, rows_per_run, runs_of
from pipeline.statistics.counts import FeatureCounts
from tests.models.neighbours import FAR, Neighbours
from tests.support.strategies import Data, chunkings, memory_rows, tables

SERIAL = SerialExecutor()
RUN = 17


@pytest.fixture(autouse=True, scope="module")
def short_runs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.passes.row_ranges._FEWEST_ROWS", RUN)
        yield


def pairs_of(data: Data, sizes: list[int], k: int = 3) -> Pairs:
    rows = memory_rows(data, sizes)
    return Pairs(partial(Neighbours(k=k).compare, None, {}), rows, rows)


def nearest(data: Data, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the split, and their nearest: sorted by distance, then by row."""
    rows = np.arange(len(data.X)) if data.keep is None else np.flatnonzero(data.keep)
    X, mask = data.X[rows].astype(np.int64), data.mask[rows].astype(np.int64)
    ones, zeros = X * mask, (1 - X) * mask
    distances = ones @ zeros.T + zeros @ ones.T
    places = np.argsort(distances, axis=1, kind="stable")[:, :k]
    keys = (np.take_along_axis(distances, places, 1) << 40) | rows[places]
    return rows, np.hstack([keys, np.full((len(rows), k - keys.shape[1]), FAR)])


@settings(deadline=None, max_examples=60)
@given(data=tables(splits=True), k=st.integers(1, 5), draw=st.data())
def test_neighbours_are_those_of_all_pairs(data: Data, k: int, draw: st.DataObject) -> None:
    pairs = pairs_of(data, draw.draw(chunkings(len(data.X))), k)
    found = in_memory(pairs, SERIAL)
    rows, expected = nearest(data, k)
    assert found.n_runs == -(-len(rows) // RUN)
    parts = [found.read(key) for key in range(found.n_runs)]
    assert [row for part in parts for row in part["row"]] == rows.tolist()
    np.testing.assert_array_equal(
        np.concatenate([expected[:0], *(part["nearest"] for part in parts)]), expected
    )
    for part in parts:
        assert {n: (a.shape[1:], str(a.dtype)) for n, a in part.items()} == {
            n: (shape, dtype) for n, (_, shape, dtype) in pairs.described().items()
        }


def drawn() -> Data:
    rng = np.random.default_rng(0)
    return Data(rng.integers(0, 2, (200, 9), np.uint8), None, rng.integers(0, 3, 200))


def test_a_task_reads_its_chunks_then_all_others_one_by_one() -> None:
    pairs, keys = pairs_of(drawn(), [50] * 4), []

    def read(key: int) -> Any:
        keys.append(key)
        return memory_rows(drawn(), [50] * 4).read(key)

    rows = replace(pairs.rows, read=read)
    watched = replace(pairs, rows=rows, others=rows)
    run = runs_of([50] * 4, 75)[1]  # rows 75 to 149
    assert watched(run)["row"].tolist() == [*range(75, 150)]
    assert keys == [1, 2, 0, 1, 2, 3]


def test_an_interrupted_task_is_given_up() -> None:
    pairs, run = pairs_of(drawn(), [200]), runs_of([200], 200)[0]
    with pytest.raises(Unwanted):
        while_wanted(lambda: False, pairs, run)


def test_progress_is_told_of_every_task() -> None:
    told: list[Any] = []
    in_memory(pairs_of(drawn(), [90, 110]), SERIAL, lambda *what: told.append(what))
    assert told[0] == ("pairs", 0, 12, 0)
    assert told[-1] == ("pairs", 12, 12, 200)
    assert [done for _, done, _, _ in told] == [*range(13)]


def test_small_data_are_cut_for_all_workers_and_wide_results_for_memory() -> None:
    arrays: Described = {"row": ((), (), "int64"), "wide": (("a",), (1 << 19,), "float64")}
    assert rows_per_run(arrays, 10**6) == (16 << 20) // (8 << 19) == 4
    assert rows_per_run({"row": ((), (), "int64")}, 10**9) == 1 << 17
    assert rows_per_run({"row": ((), (), "int64")}, 0) == 1
    assert rows_by_chunk(memory_rows(drawn(), [90, 110]), SERIAL) == [90, 110]


def test_threads_give_the_bytes_of_serial_and_no_pass_is_made() -> None:
    rows = memory_rows(drawn(), [90, 110])
    states = [fit(Neighbours(), rows, executor) for executor in (SERIAL, ThreadsExecutor(3))]
    for name, values in vars(states[0].params).items():
        assert values.tobytes() == getattr(states[1].params, name).tobytes(), name
    assert (states[0].iteration, states[0].history, states[0].done) == (0, (), True)
    assert not states[0].warnings


@dataclass(frozen=True)
class Counting(Neighbours):
    """Makes a pass when the pairs are done."""

    max_iter: int = field(default=1, init=False)

    def convergence(self, state: FitState) -> Convergence:
        return ByPasses(1)

    def summarize(self, params: Any, working: Any, block: Any, rng: Any) -> FeatureCounts:
        assert len(params.bits) == 200
        return FeatureCounts.of_block(block)

    def update(self, state: FitState, statistics: Any, map_items: Any, rng: Any) -> FitState:
        counted = {"ones": int(statistics.ones.sum())}
        return replace(state, diagnostics={**state.diagnostics, **counted})


def test_passes_follow_where_the_model_wants_some() -> None:
    rows = memory_rows(drawn(), [90, 110])
    state, alone = fit(Counting(), rows, SERIAL), fit(Neighbours(), rows, SERIAL)
    assert (state.iteration, state.done) == (1, True)
    assert state.diagnostics == {"n_components": 2, "ones": int(drawn().X.sum())}
    np.testing.assert_array_equal(state.params.smoothed, alone.params.smoothed)
