"""Tasks of about equal work, which hold every row once, whatever the estimate of the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.blocks import ChunkPart, RowSource, iter_blocks, pack_block
from pipeline.executors.base import SerialExecutor, ThreadsExecutor, choose_span_height
from pipeline.fitting.loop import fit_model, initialize_fit
from pipeline.models.latent_trait import LatentTrait
from pipeline.models.latent_trait.params import make_params
from pipeline.passes.map_reduce import collect_statistics, split_chunks_into_groups
from pipeline.passes.task_sizes import (
    WorkEstimate,
    choose_max_pieces,
    choose_rows_per_task,
    split_group,
)
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.statistics.pair_moments import PairMoments
from tests.support.strategies import DenseData, make_memory_rows

TWO_TRAITS = LatentTrait(2, estimator="quadrature")


def random_rows(n_rows: int, n_segments: int, seed: int, chunks: list[int]) -> RowSource:
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 2, (n_rows, 5)).astype(np.uint8)
    segments = np.sort(rng.integers(0, n_segments, n_rows) ** 2)
    return make_memory_rows(DenseData(X, segments=segments), chunks)


@given(st.integers(1, 3000), st.integers(1, 9), st.integers(1, 70), st.integers(0, 99))
def test_parts_hold_every_row_of_a_chunk_once(
    n_rows: int, n_segments: int, n_parts: int, seed: int
) -> None:
    chunk = random_rows(n_rows, n_segments, seed, [n_rows]).read(0)
    whole = np.concatenate([b.rows for b in iter_blocks(chunk)])
    blocks = [b for k in range(n_parts) for b in iter_blocks(chunk, ChunkPart(k, n_parts))]
    assert sorted(np.concatenate([b.rows for b in blocks])) == sorted(whole)
    X = {row: values for b in iter_blocks(chunk) for row, values in zip(*rows_of(b), strict=True)}
    for block in blocks:
        assert block.words.shape[1] == -(-block.n_samples // 64)
        for row, values in zip(*rows_of(block), strict=True):
            assert values == X[row]


def rows_of(block: Any) -> tuple[list[int], list[list[int]]]:
    return block.rows.tolist(), block.unpack_values().tolist()


def test_blocks_smaller_than_a_part_are_not_cut() -> None:
    rows = make_memory_rows(
        DenseData(np.zeros((4000, 2), np.uint8), segments=np.arange(4000) // 200)
    )
    parts = [list(iter_blocks(rows.read(0), ChunkPart(k, 7))) for k in range(7)]
    assert {block.n_samples for part in parts for block in part} == {200}
    assert {len(part) for part in parts} <= {2, 3}


sizes = st.lists(st.integers(1, 300_000), min_size=1, max_size=30)


@given(sizes, st.floats(1, 1e7))
def test_pieces_hold_every_chunk_once_and_in_order(chunks: list[int], size: float) -> None:
    for keys in split_chunks_into_groups(len(chunks)):
        pieces = split_group(keys, chunks, size)
        found = [(key, *piece.part) for piece in pieces for key in piece.keys]
        assert found == sorted(found)
        for key in keys:
            parts = [part for k, *part in found if k == key]
            assert parts == [[k, len(parts)] for k in range(len(parts))]
            assert len(parts) <= max(1, chunks[key] // 64)
        for piece in pieces:
            rows = sum(chunks[key] for key in piece.keys) / piece.part.n_parts
            assert rows <= 1.5 * size or piece.part.n_parts in (
                64,
                max(chunks[piece.keys[0]] // 64, 1),
            )


def task_seconds(
    n_rows: int, n_features: int, chunk_rows: int, *, by_nodes: bool = True
) -> list[float]:
    """Estimated seconds of each task of a pass, on nodes or by the variational bound."""
    params = DenseTraits(np.zeros((n_features, 2)))
    nodes = {"points": np.zeros((441, 2)), "log_weights": np.zeros(441)} if by_nodes else {}
    chunks = [chunk_rows] * (n_rows // chunk_rows)
    work = TWO_TRAITS.estimate_work(params, nodes, n_features, chunk_rows)  # type: ignore[arg-type]
    size = choose_rows_per_task(work, chunks)
    pieces = [
        p for keys in split_chunks_into_groups(len(chunks)) for p in split_group(keys, chunks, size)
    ]
    seconds = 1e-9 * work.nanoseconds * chunk_rows
    return [len(p.keys) * seconds / p.part.n_parts for p in pieces]


@dataclass
class DenseTraits:
    weights: np.ndarray
    n_levels: None = None


def test_short_passes_have_many_tasks_and_long_ones_tasks_of_seconds() -> None:
    assert len(task_seconds(400_000, 64, 131_072)) >= 16
    assert len(task_seconds(10_000_000, 100, 156_224)) >= 256
    long = task_seconds(10**9, 1000, 268_416, by_nodes=False)
    assert 1 <= min(long) <= max(long) <= 3


def test_a_thousand_workers_wait_neither_for_the_scheduler_nor_for_merges() -> None:
    seconds, result_bytes = task_seconds(10**9, 1000, 268_416), 2 * 8 * 1000 * 441
    height = choose_span_height(
        len(seconds), 1000, choose_max_pieces(WorkEstimate(1.0, result_bytes))
    )
    assert 5000 <= len(seconds) >> height <= 0.5 * sum(seconds) / 1000 / 2e-3
    assert 8 * result_bytes / 5e8 < min(seconds)


@pytest.mark.parametrize("share_of_missing", [0.0, 0.1])
def test_long_passes_of_many_items_have_many_tasks(share_of_missing: float) -> None:
    n_rows, n_features = 2_000_000, 400
    observed = np.full((1, n_features), round(n_rows * (1 - share_of_missing)))
    counts = FeatureCounts(np.zeros(1, np.int64), np.array([n_rows]), observed, observed // 2)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((n_features, 2))
    params = make_params(weights, np.zeros(n_features))
    few = pack_block(rng.integers(0, 2, (100, n_features)).astype(np.uint8))
    first = replace(PairMoments.from_block(few), counts=counts)
    state = TWO_TRAITS.warm_start(initialize_fit(TWO_TRAITS, first, 0), params)
    errors = TWO_TRAITS.begin_information_pass(state)
    assert errors is not None
    for working in (state.working, errors) if share_of_missing else (errors,):
        work = TWO_TRAITS.estimate_work(state.params, working, n_features, n_rows)
        assert n_rows / choose_rows_per_task(work, [n_rows]) >= 10


WRONG = [0.0, -1.0, float("nan"), float("inf"), 1e-9, 1e3, 1e15]


@pytest.mark.parametrize("nanoseconds", WRONG)
@pytest.mark.parametrize("result_bytes", [0.0, 1e12, float("nan")])
def test_a_wrong_estimate_changes_no_count(nanoseconds: float, result_bytes: float) -> None:
    rows = random_rows(20_000, 3, 0, [9000, 9000, 2000])
    done: list[int] = []
    found = collect_statistics(
        partial(PairCounts.from_block, pooled=True),
        rows,
        ThreadsExecutor(2),
        "pairs",
        progress=lambda label, tasks, total, n: done.append(total - tasks),
        work=WorkEstimate(nanoseconds, result_bytes),
    )
    whole = collect_statistics(
        partial(PairCounts.from_block, pooled=True), rows, SerialExecutor(), "pairs"
    )
    for name, values in whole.to_arrays().items():
        np.testing.assert_array_equal(found.to_arrays()[name], values)
    assert found.n_rows == 20_000
    assert done == sorted(set(done), reverse=True)
    assert done[-1] == 0
    assert len(done) <= 1 + 3 * 64


@pytest.mark.parametrize("kept_share", [0.01, 0.1, 0.5, 1.0])
def test_parts_without_rows_of_the_split_change_no_count(kept_share: float) -> None:
    """Rows of the split at the start, so that later parts of a chunk have none."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (4000, 5)).astype(np.uint8)
    keep = np.arange(len(X)) % 2000 < kept_share * 2000
    rows = make_memory_rows(DenseData(X, keep=keep), [2000, 2000])
    counts = collect_statistics(
        FeatureCounts.from_block, rows, SerialExecutor(), "counts", work=WorkEstimate(1e6)
    )
    assert counts.n_rows == keep.sum()
    np.testing.assert_array_equal(counts.ones.sum(axis=0), X[keep].sum(axis=0))


@dataclass(frozen=True)
class Expensive(LatentTrait):
    """A model that takes a small chunk for a minute's work."""

    def estimate_work(self, *arguments: Any) -> WorkEstimate:
        return WorkEstimate(1e9, 8)


def test_a_fit_in_parts_has_the_same_bytes_with_every_number_of_threads() -> None:
    rng = np.random.default_rng(3)
    X = (rng.random((3000, 6)) < 0.3 + 0.4 * (rng.random((3000, 1)) < 0.5)).astype(np.uint8)
    rows = make_memory_rows(DenseData(X), [1700, 1300])
    total: set[int] = set()

    def fit(executor: Any) -> Any:
        model = Expensive(1, max_iter=4)
        return fit_model(
            model, rows, executor, progress=lambda _, done, n_tasks, n_rows: total.add(n_tasks)
        ).params

    serial = fit(SerialExecutor())
    assert max(total) == 1700 // 64 + 1300 // 64
    for n_threads in (2, 5):
        threads = fit(ThreadsExecutor(n_threads))
        assert threads.weights.tobytes() == serial.weights.tobytes()
        assert threads.weights_error.tobytes() == serial.weights_error.tobytes()
    whole = fit_model(LatentTrait(1, max_iter=4), rows, SerialExecutor()).params
    np.testing.assert_allclose(serial.weights, whole.weights, rtol=1e-9)


def test_rows_take_most_of_the_time_of_a_task() -> None:
    per_task = 1e7
    size = choose_rows_per_task(WorkEstimate(100.0, 0, per_task), [1000] * 100)
    assert 100.0 * size >= 5 * per_task
    assert size > choose_rows_per_task(WorkEstimate(100.0), [1000] * 100)
