"""Nearest rows and their graphs against distances, brute force and SciPy on dense matrices."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import ThreadsExecutor
from pipeline.numerics.graphs import neighbours
from pipeline.numerics.graphs.neighbours import (
    NO_ROW,
    GraphEdges,
    Metric,
    NearestRows,
    NumberedRows,
    connect_components,
    empty_nearest,
    find_nearest_vertices,
    label_connected_components,
    laplacian_eigenvectors,
    merge_nearest,
    neighbour_edges,
)
from pipeline.numerics.intrinsics import has_cpu_feature
from tests.support.strategies import Bits, DenseData, tables

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


def test_some_rows_may_have_missing_values():
    rng = np.random.default_rng(0)
    left, right = (DenseData(rng.integers(0, 2, (n, 7), np.uint8)) for n in (200, 60))
    observed = (rng.random(right.X.shape) < 0.7).astype(np.uint8)
    observed[:20] = observed[30:] = 1  # one of three parts has missing values, the first to come
    some = DenseData(right.X, observed)
    for metric in METRICS:
        check(metric, left, some, 5)
        check(metric, some, left, 5)


def check_with_themselves(data: DenseData, k: int, n_parts: int = 0) -> None:
    """Compare the rows with themselves, once others were merged; parts leave out what is equal."""
    parts = np.arange(len(data.X)) % n_parts if n_parts else np.arange(len(data.X))
    for metric in METRICS:
        rows, found = numbered(data, np.arange(len(data.X)), parts), empty_nearest(len(data.X), k)
        merge_nearest(metric, rows, rows, found)
        expected = nearest(all_distances(metric, data, data), k, parts, parts)
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_array_equal(found.distances, expected.distances)


@given(data=tables(), k=st.integers(1, 9), n_parts=PARTS)
def test_few_rows_compared_with_themselves(data, k, n_parts):
    check_with_themselves(data, k, n_parts)


def test_lists_of_rows_compared_with_themselves_may_hold_others():
    X = np.random.default_rng(0).integers(0, 2, (600, 8), np.uint8)
    data, places = DenseData(X), np.arange(600)
    some, found = numbered(data, places[200:400], places), empty_nearest(200, 20)
    for others in (slice(400, 600), slice(200, 400), slice(200)):  # ties with rows on either side
        rows = some if others.start == 200 else numbered(data, places[others], places)
        merge_nearest("hamming", some, rows, found)
    expected = nearest(all_distances("hamming", data, data), 20, places, places)
    np.testing.assert_array_equal(found.indices, expected.indices[200:400])
    np.testing.assert_array_equal(found.distances, expected.distances[200:400])


def test_more_differences_than_a_short_number_holds():
    n_features = 70_000
    X = np.zeros((3, n_features), np.uint8)
    X[1], X[2, :66_000] = 1, 1
    check("hamming", DenseData(X), DenseData(X), 2, 3)
    check_with_themselves(DenseData(X), 2)


@pytest.mark.parametrize("n_features", [1, 63, 252, 253, 256, 1030])
@pytest.mark.parametrize("kind", ["popcount", "lookup"])
def test_either_way_of_counting_counts_all_differences(n_features, kind):
    if kind == "popcount":
        kernels = neighbours._copy_left, neighbours._copy_right, neighbours._count_by_popcount
    elif has_cpu_feature("avx2"):
        kernels = neighbours._split_left, neighbours._split_right, neighbours._count_by_lookup
    else:
        pytest.skip("the CPU has no AVX2")
    X = np.random.default_rng(0).integers(0, 2, (70, n_features), np.uint8)
    X[5] = 1 - X[66]  # all features differ
    words = np.ascontiguousarray(pack_block(X).to_packed_rows().words)
    left, right = kernels[0](words, 3, 9), kernels[1](words, 6, 70)
    memory = np.full(4 * 64 + 16, 9, np.uint16)
    start = -(memory.ctypes.data // 2) % 16
    counts = memory[start : start + 256].reshape(4, 64)
    for i in (0, 4):
        kernels[2](left, i, right, counts)
        own = X[3 + i : min(7 + i, 9)]
        np.testing.assert_array_equal(counts[: len(own)], (own[:, None] != X[6:]).sum(axis=2))


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


Array = NDArray[np.float64]


def distinct(n: int, n_features: int, seed: int = 0) -> Bits:
    X = np.random.default_rng(seed).integers(0, 2, (2 * n, n_features), dtype=np.uint8)
    return np.unique(X, axis=0)[:n]


def vertices(X: Bits, mask: Bits | None = None) -> NumberedRows:
    at = np.arange(len(X))
    return NumberedRows(pack_block(X, mask).to_packed_rows(), at, at)


def graph(X: Bits, k: int, mask: Bits | None = None) -> GraphEdges:
    """The links of a graph before its parts are joined."""
    of = vertices(X, mask)
    return neighbour_edges(find_nearest_vertices(of, of.numbers, k, map))


def distances(X: Bits) -> Array:
    return (X[:, None] != X).sum(axis=2).astype(np.float64)


def pairs(links: GraphEdges) -> set[tuple[int, int]]:
    return {*zip(links.left.tolist(), links.right.tolist(), strict=True)}


def by_force(X: Bits, k: int) -> set[tuple[int, int]]:
    """Links of every row with its k nearest, ties by number."""
    far = distances(X)
    np.fill_diagonal(far, np.inf)
    near = np.argsort(far, axis=1, kind="stable")[:, :k]
    return {(min(i, j), max(i, j)) for i, row in enumerate(near.tolist()) for j in row}


def apart() -> Bits:
    """Four clusters, the first two of which are nearest to each other."""
    centres = np.repeat(np.eye(4, dtype=np.uint8), [10, 10, 30, 40], axis=1)
    near = np.eye(90, dtype=np.uint8)[:, None, : 6 * 15].reshape(90, 90)
    within = [near[start : start + 8] for start in (0, 10, 20, 50)]
    return np.concatenate([centre ^ w for centre, w in zip(centres, within, strict=True)])


def test_links_are_those_of_brute_force() -> None:
    X = distinct(300, 20)
    links = graph(X, 4)
    assert pairs(links) == by_force(X, 4)
    np.testing.assert_array_equal(links.distances, distances(X)[links.left, links.right])


def test_threads_find_the_same() -> None:
    of = vertices(distinct(2500, 40))
    one, two = (find_nearest_vertices(of, of.numbers, 3, m) for m in (map, ThreadsExecutor(2).map))
    assert one.indices.tobytes() == two.indices.tobytes()
    assert one.distances.tobytes() == two.distances.tobytes()


def test_parts_are_joined_by_the_shortest_links() -> None:
    X = apart()
    links, far = graph(X, 3), distances(X)
    parts = label_connected_components(links, len(X))
    assert parts.max() == 3
    whole = connect_components(links, vertices(X), map)
    assert not label_connected_components(whole, len(X)).any()
    added = sorted(pairs(whole) - pairs(links))
    assert len(added) == 3
    between = np.array([[far[parts == a][:, parts == b].min() for b in range(4)] for a in range(4)])
    tree = scipy.sparse.csgraph.minimum_spanning_tree(between)
    assert sorted(far[i, j] for i, j in added) == sorted(tree.data)


def test_rows_that_cannot_be_compared_are_refused() -> None:
    X, mask = np.tile(distinct(20, 6), 2), np.zeros((20, 12), np.uint8)
    mask[:12, :6] = mask[12:, 6:] = 1
    links = graph(X * mask, 3, mask)
    with pytest.raises(
        FitError, match=r"(8|12) distinct rows share no observed feature with the other"
    ):
        connect_components(links, vertices(X * mask, mask), map)


def test_eigenvectors_are_those_of_the_dense_generalised_problem() -> None:
    X = distinct(500, 16)
    links = graph(X, 8)
    W = np.zeros((500, 500))
    weights = np.exp(-links.distances / 4)
    W[links.left, links.right] = W[links.right, links.left] = weights
    D = np.diag(W.sum(axis=1))
    values, vectors = scipy.linalg.eigh(D - W, D)
    found = laplacian_eigenvectors(links, weights, 500, 5)
    np.testing.assert_allclose(found.eigenvalues, values[1:6], rtol=0, atol=1e-8)
    cosines = (found.vectors * (D @ vectors[:, 1:6])).sum(axis=0) / np.sqrt(D.sum())
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-8)
    degrees = W.sum(axis=1)
    np.testing.assert_allclose(degrees @ found.vectors, 0, atol=1e-8)
    np.testing.assert_allclose(degrees @ found.vectors**2 / degrees.sum(), 1, atol=1e-12)
