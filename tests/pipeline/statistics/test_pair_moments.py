"""Tests of moments of pairs of features with anchors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.statistics import pair_moments
from pipeline.statistics.pair_moments import PairMoments, choose_anchors

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

N_PLANES = np.array([1, 2, 3, 1, 0, 1, 0, 2])
MOMENTS = ("pair_rows", "left", "right", "left_squares", "right_squares", "products")


def draw_scores(
    n: int, has_numbers: bool, rng: np.random.Generator
) -> tuple[Floats, Mask, Indices]:
    """Return scores, which are observed, and numbers of planes."""
    drawn = np.stack(
        [rng.integers(0, k + 1, n) if k else rng.normal(5, 2, n) for k in N_PLANES], axis=1
    )
    scores = drawn.astype(np.float32).astype(np.float64)
    columns = np.flatnonzero(has_numbers | (N_PLANES > 0))
    return scores[:, columns], rng.random((n, len(columns))) < 0.8, N_PLANES[columns]


def make_block(
    scores: NDArray[Any], observed: Mask, n_planes: Indices, has_mask: bool, segment: int = 0
) -> BinaryBlock:
    planes = [scores[:, j] >= c for j, k in enumerate(n_planes.tolist()) for c in range(1, k + 1)]
    bits = np.stack(planes, axis=1).astype(np.uint8)
    mask = np.repeat(observed, n_planes, axis=1).astype(np.uint8)
    numbers = None
    if (n_planes == 0).any():
        numbers = np.where(observed, scores, np.nan)[:, n_planes == 0].T.astype(np.float32)
    return pack_block(bits & mask, mask if has_mask else None, segment, numbers=numbers)


def sum_moments(scores: Floats, observed: Mask, weights: Indices) -> list[Floats]:
    x, m = np.where(observed, scores, 0.0).astype(float), observed.astype(float)
    w = weights[:, None]
    pairs = [(m, m), (x, m), (m, x), (x**2, m), (m, x**2), (x, x)]
    return [(a * w).T @ b for a, b in pairs]


@pytest.mark.parametrize("has_numbers", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("n_cells", [1 << 19, 24])
def test_moments_are_those_of_the_scores(
    has_numbers: bool,
    has_mask: bool,
    has_weights: bool,
    n_cells: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair_moments, "_MAX_CELLS", n_cells)
    monkeypatch.setattr(pair_moments, "_MIN_ANCHORS", 3)
    rng = np.random.default_rng(0)
    scores, observed, n_planes = draw_scores(300, has_numbers, rng)
    if not has_mask:
        observed[:] = True
    block, weights = make_block(scores, observed, n_planes, has_mask), np.ones(300, np.int64)
    if has_weights:
        weights = rng.integers(0, 5, 300)
        block = replace(block, weights=weights)
    moments = PairMoments.from_block(block, n_planes)
    anchors = choose_anchors(len(n_planes), 1)
    assert (len(anchors) < len(n_planes)) == (n_cells == 24)
    for name, expected in zip(MOMENTS, sum_moments(scores, observed, weights), strict=True):
        np.testing.assert_allclose(getattr(moments, name)[0], expected[anchors])
    restored = PairMoments.from_arrays(moments.to_arrays())
    np.testing.assert_array_equal(restored.products, moments.products)
    assert type(restored.counts) is type(moments.counts)


def test_correlations_are_those_of_numpy_within_segments() -> None:
    rng = np.random.default_rng(1)
    parts = []
    for segment in range(2):
        common = rng.standard_normal(4000)[:, None]
        X = (common + rng.standard_normal((4000, 5)) > (segment, 0, -segment, 0, 1)).astype(int)
        parts.append(X)
    n_planes = np.ones(5, np.int64)
    observed = np.ones((4000, 5), bool)
    blocks = [make_block(X, observed, n_planes, True, u) for u, X in enumerate(parts)]
    moments = [PairMoments.from_block(block, n_planes, 2) for block in blocks]
    found = moments[0].merge(moments[1]).compute_correlations()
    expected = np.mean([np.corrcoef(X.T) for X in parts], axis=0)
    np.testing.assert_allclose(found.values, expected, atol=2e-3)
    assert (found.rows == 8000).all()
    pooled = [PairMoments.from_block(block) for block in blocks]
    joined = pooled[0].merge(pooled[1])
    assert joined.segments.tolist() == [0]
    expected = np.corrcoef(np.concatenate(parts).T)
    np.testing.assert_allclose(joined.compute_correlations().values, expected, atol=2e-3)


def test_a_single_common_row_counts() -> None:
    X = np.array([[1, 0], [0, 0], [1, 1], [0, 0], [1, 1]], np.uint8)
    observed = np.array([[1, 0], [1, 0], [0, 1], [0, 1], [1, 1]], np.uint8)
    found = PairMoments.from_block(pack_block(X, observed)).compute_correlations()
    assert found.rows[0, 1] == 1
    assert found.values[0, 1] > 0


def test_anchors_of_many_features_are_few() -> None:
    assert choose_anchors(500, 1).tolist() == list(range(500))
    anchors = choose_anchors(10_000, 1)
    assert 16 <= len(anchors) <= 100
    assert np.diff(anchors).min() > 90
