"""Pair work: every row against all rows, as a dense matrix of distances tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.executors.cancellation import Cancelled, run_cancellable
from pipeline.fitting.loop import fit_model
from pipeline.fitting.pair_work import RowPairJob, run_in_memory
from pipeline.passes.row_ranges import (
    ArrayDescriptions,
    choose_rows_per_range,
    count_rows_by_chunk,
    split_into_ranges,
)
from tests.models.neighbours import FAR, Neighbours
from tests.support.strategies import DenseData, chunkings, make_memory_rows, tables

SERIAL = SerialExecutor()
RUN = 17


@pytest.fixture(autouse=True, scope="module")
def short_runs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.passes.row_ranges._MIN_ROWS", RUN)
        yield


def pairs_of(data: DenseData, sizes: list[int], k: int = 3) -> RowPairJob:
    rows = make_memory_rows(data, sizes)
    return RowPairJob(partial(Neighbours(k=k).compare, None, {}), rows, rows)


def nearest(data: DenseData, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the split, and their nearest: sorted by distance, then by row."""
    rows = np.arange(len(data.X)) if data.keep is None else np.flatnonzero(data.keep)
    X, mask = data.X[rows].astype(np.int64), data.mask[rows].astype(np.int64)
    ones, zeros = X * mask, (1 - X) * mask
    distances = ones @ zeros.T + zeros @ ones.T
    places = np.argsort(distances, axis=1, kind="stable")[:, :k]
    keys = (np.take_along_axis(distances, places, 1) << 40) | rows[places]
    return rows, np.hstack([keys, np.full((len(rows), k - keys.shape[1]), FAR)])


@given(data=tables(splits=True), k=st.integers(1, 5), draw=st.data())
def test_neighbours_are_those_of_all_pairs(data: DenseData, k: int, draw: st.DataObject) -> None:
    pairs = pairs_of(data, draw.draw(chunkings(len(data.X))), k)
    found = run_in_memory(pairs, SERIAL)
    rows, expected = nearest(data, k)
    assert found.n_ranges == -(-len(rows) // RUN)
    parts = [found.read(key) for key in range(found.n_ranges)]
    assert [row for part in parts for row in part["row"]] == rows.tolist()
    np.testing.assert_array_equal(
        np.concatenate([expected[:0], *(part["nearest"] for part in parts)]), expected
    )
    for part in parts:
        assert {n: (a.shape[1:], str(a.dtype)) for n, a in part.items()} == {
            n: (shape, dtype) for n, (_, shape, dtype) in pairs.describe_arrays().items()
        }


def drawn() -> DenseData:
    rng = np.random.default_rng(0)
    return DenseData(rng.integers(0, 2, (200, 9), np.uint8), None, rng.integers(0, 3, 200))


def test_a_task_reads_its_chunks_then_all_others_one_by_one() -> None:
    pairs, keys = pairs_of(drawn(), [50] * 4), []

    def read(key: int) -> Any:
        keys.append(key)
        return make_memory_rows(drawn(), [50] * 4).read(key)

    rows = replace(pairs.rows, read=read)
    watched = replace(pairs, rows=rows, others=rows)
    run = split_into_ranges([50] * 4, 75)[1]  # rows 75 to 149
    assert watched(run)["row"].tolist() == [*range(75, 150)]
    assert keys == [1, 2, 0, 1, 2, 3]


def test_progress_is_told_of_every_task() -> None:
    told: list[Any] = []
    run_in_memory(pairs_of(drawn(), [90, 110]), SERIAL, lambda *what: told.append(what))
    assert told[0] == ("pairs", 0, 12, 0)
    assert told[-1] == ("pairs", 12, 12, 200)
    assert [done for _, done, _, _ in told] == [*range(13)]


def test_small_data_are_cut_for_all_workers_and_wide_results_for_memory() -> None:
    arrays: ArrayDescriptions = {"row": ((), (), "int64"), "wide": (("a",), (1 << 19,), "float64")}
    assert choose_rows_per_range(arrays, 10**6) == (16 << 20) // (8 << 19) == 4
    assert choose_rows_per_range({"row": ((), (), "int64")}, 10**9) == 1 << 17
    assert choose_rows_per_range({"row": ((), (), "int64")}, 0) == 1
    assert count_rows_by_chunk(make_memory_rows(drawn(), [90, 110]), SERIAL) == [90, 110]


def test_threads_give_the_bytes_of_serial_and_no_pass_is_made() -> None:
    rows = make_memory_rows(drawn(), [90, 110])
    states = [fit_model(Neighbours(), rows, executor) for executor in (SERIAL, ThreadsExecutor(3))]
    for name, values in vars(states[0].params).items():
        assert values.tobytes() == getattr(states[1].params, name).tobytes(), name
    assert (states[0].iteration, states[0].history, states[0].done) == (0, (), True)
    assert not states[0].warnings


def test_an_interrupted_task_is_given_up() -> None:
    pairs, run = pairs_of(drawn(), [200]), split_into_ranges([200], 200)[0]
    with pytest.raises(Cancelled):
        run_cancellable(lambda: False, pairs, run)
