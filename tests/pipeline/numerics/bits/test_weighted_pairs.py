"""Weighted sums of pairs of bits against sums over unpacked rows."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.numerics.bits.kernels import pack_rows
from pipeline.numerics.bits.weighted_pairs import ROWS_AT_ONCE, add_weighted_pairs


@pytest.mark.parametrize(
    ("n_samples", "n_features"), [(0, 3), (1, 1), (63, 8), (700, 65), (ROWS_AT_ONCE + 70, 75)]
)
def test_sums_are_those_of_unpacked_rows(n_samples: int, n_features: int) -> None:
    """Of weights of any kind at once; sums below the diagonal stay as they are."""
    rng = np.random.default_rng(0)
    X = (rng.random((n_samples, n_features)) < rng.random(n_features)).astype(np.uint8)
    weights = rng.random((n_samples, 5))
    weights[:, 1] *= rng.random(n_samples) < 0.1
    weights[:, 2] = 0.0
    weights[:, 3] = rng.integers(0, 5, n_samples)
    weights[:, 4] = rng.integers(0, 1 << 30, n_samples)
    words = np.repeat(pack_rows(X), 2, axis=0)[::2]
    before = rng.integers(0, 100, (5, n_features, n_features)).astype(np.float64)
    sums = before.copy()
    add_weighted_pairs(words, weights, sums)
    expected = np.array([(X * own[:, None]).T @ X.astype(np.float64) for own in weights.T])
    np.testing.assert_allclose(sums, before + np.triu(expected), rtol=1e-12)
    np.testing.assert_array_equal(sums[2:], before[2:] + np.triu(expected[2:]))  # exact


def test_equal_features_have_equal_sums() -> None:
    """Rounding must not choose between features that are the same, wherever they are."""
    rng = np.random.default_rng(1)
    X = np.repeat(rng.integers(0, 2, (3000, 40), np.uint8), 2, axis=1)[:, rng.permutation(80)]
    sums = np.zeros((1, 80, 80))
    add_weighted_pairs(pack_rows(X), rng.random((3000, 1)), sums)
    pairs = sums[0] + np.triu(sums[0], 1).T
    equal = [np.flatnonzero((x[:, None] == X).all(axis=0)) for x in X.T]
    for i, j in equal:
        others = np.delete(np.arange(80), [i, j])
        np.testing.assert_allclose(pairs[i, others], pairs[j, others], rtol=1e-13)
