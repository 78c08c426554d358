"""Nearest rows by packed bits against all distances, counted from dense matrices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.numerics.graphs.neighbours import (
    NO_ROW,
    Metric,
    NearestRows,
    NumberedRows,
    empty_nearest,
    merge_nearest,
)
from tests.support.strategies import DenseData, tables

METRICS: list[Metric] = ["hamming", "jaccard"]
PARTS = st.sampled_from([0, 2, 999])


def all_distances(metric: Metric, left: DenseData, right: DenseData) -> NDArray[np.float64]:
    """Distances of all pairs: what lies under a missing value plays no part."""
    x, y, seen, also = (a.astype(np.float64) for a in (left.X, right.X, left.mask, right.mask))
    both, ones = seen @ also.T, (x * seen) @ (y * also).T
    differ = (x * seen) @ also.T + seen @ (y * also).T - 2 * ones
    of = np.maximum(1, both if metric == "hamming" else ones + differ)
    times = x.shape[1] if metric == "hamming" else 1
    return np.where(both > 0, times * differ / of, np.inf)


def nearest(
    distances: NDArray[np.float64], k: int, own: NDArray[np.int64], others: NDArray[np.int64]
) -> NearestRows:
    """Sort those of other parts by distance, then by row."""
    found = empty_nearest(len(distances), k)
    for i, far in enumerate(distances):
        order = [j for j in np.argsort(far, kind="stable") if own[i] != others[j]][:k]
        found.indices[i, : len(order)] = order
        found.distances[i, : len(order)] = far[order]
    return found


def numbered(data: DenseData, at: NDArray[np.int64], parts: NDArray[np.int64]) -> NumberedRows:
    X, mask = data.X[at], data.mask[at]
    bits = pack_block(X, None if mask.all() else mask).to_packed_rows()
    return NumberedRows(bits, at, parts[at])


def parts_of(
    left: DenseData, right: DenseData, n_parts: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Deal rows to parts; 0 leaves out no row."""
    rows = np.arange(max(len(left.X), len(right.X)))
    parts = rows % n_parts if n_parts else rows
    own = parts if n_parts else np.full_like(rows, -1)
    return own[: len(left.X)], parts[: len(right.X)]


def found_by_thirds(
    metric: Metric, left: DenseData, right: DenseData, k: int, n_parts: int = 0
) -> NearestRows:
    """Find them, the rows on the right in three turns, the first last."""
    n_left, n_right = len(left.X), len(right.X)
    own, others = parts_of(left, right, n_parts)
    found, rows = empty_nearest(n_left, k), numbered(left, np.arange(n_left), own)
    first, *later = pairwise([0, n_right // 3, n_right // 2, n_right])
    for start, stop in (*later, first):
        some = numbered(right, np.arange(start, stop), others)
        merge_nearest(metric, rows, some, found)
    return found


def check(metric: Metric, left: DenseData, right: DenseData, k: int, n_parts: int = 0) -> None:
    found = found_by_thirds(metric, left, right, k, n_parts)
    parts = parts_of(left, right, n_parts)
    expected = nearest(all_distances(metric, left, right), k, *parts)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.distances, expected.distances)


@settings(deadline=None, max_examples=40)
@given(data=tables(), metric=st.sampled_from(METRICS), k=st.integers(1, 9), n_parts=PARTS)
def test_few_features_tie_and_k_may_exceed_the_rows(data, metric, k, n_parts):
    check(metric, data, data, k, n_parts)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("n_features", [63, 64, 129, 300])
@pytest.mark.parametrize("share", [1.0, 0.7, 0.02])
def test_many_rows_and_words(metric, n_features, share):
    rng = np.random.default_rng(n_features)
    left, right = (
        DenseData(
            (rng.random((n, n_features)) < rng.random(n)[:, None]).astype(np.uint8),
            (rng.random((n, n_features)) < share).astype(np.uint8),
        )
        for n in (7, 2500)
    )
    check(metric, left, right, 10)


@pytest.mark.parametrize("metric", METRICS)
def test_more_neighbours_than_rows_of_a_strip_and_few_parts(metric):
    data = DenseData(np.random.default_rng(0).integers(0, 2, (1300, 70), np.uint8))
    check(metric, DenseData(data.X[:5]), data, 600, 2)


def test_some_rows_may_have_missing_values():
    rng = np.random.default_rng(0)
    left, right = (DenseData(rng.integers(0, 2, (n, 7), np.uint8)) for n in (200, 60))
    observed = (rng.random(right.X.shape) < 0.7).astype(np.uint8)
    observed[:20] = observed[30:] = 1  # one of three parts has missing values, the first to come
    some = DenseData(right.X, observed)
    for metric in METRICS:
        check(metric, left, some, 5)
        check(metric, some, left, 5)


def test_a_count_comes_before_the_fraction_above_it():
    X, observed = np.ones((385, 3), np.uint8), np.ones((385, 3), np.uint8)
    X[[128, 192]], observed[128] = [1, 0, 0], [1, 1, 0]  # 1.5 and 1 far, the first rows of parts
    check("hamming", DenseData(np.zeros((1, 3), np.uint8)), DenseData(X, observed), 1)


def test_empty_rows_are_level_and_rows_without_common_features_last():
    X = np.zeros((4, 2), np.uint8)
    observed = np.array([[1, 1], [1, 1], [1, 0], [0, 0]], np.uint8)
    data = DenseData(X, observed)
    found = found_by_thirds("jaccard", data, data, 4, 4)
    assert found.distances[0].tolist() == [0, 0, np.inf, np.inf]
    assert found.indices[0].tolist() == [1, 2, 3, NO_ROW]
