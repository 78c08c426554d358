"""Posteriors given levels, against sums over grids and against those given bits."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pipeline.numerics.probit.expectation_propagation import probit_posterior
from pipeline.numerics.probit.interval_sites import interval_codes


@pytest.mark.parametrize(
    ("low", "high"),
    [(-0.4, 0.7), (0.3, 0.3 + 1e-6), (5.0, 5.5), (40.0, 60.0), (-60.0, -40.0), (-20.0, 25.0)],
)
@pytest.mark.parametrize("weight", [0.3, 2.0, 30.0])
def test_one_level_is_exact_in_the_middle_and_in_the_tails(
    low: float, high: float, weight: float
) -> None:
    """x = w u + noise is a truncated normal, and E(u | x) = w x / (1 + w²)."""
    scale = np.hypot(1.0, weight)
    offsets = -np.array([low, high]) * scale
    codes = interval_codes(
        np.array([[0], [1], [2]], np.uint8), np.array([[weight]]), offsets, np.array([3])
    )
    bounds = [-np.inf, low, high, np.inf]
    for level in range(3):
        a, b = bounds[level : level + 2]
        peak = np.clip(0.0, a, b)
        t = np.linspace(max(a, peak - 10), min(b, peak + 10), 2_000_001)
        p = np.exp(-0.5 * (t - peak) * (t + peak))
        p[[0, -1]] *= 0.5
        mean = float((p * t).sum() / p.sum())
        variance = float((p * (t - mean) ** 2).sum() / p.sum())
        share = weight / scale
        assert_allclose(codes["mean"][level, 0], share * mean, rtol=1e-6, atol=1e-8)
        expected = 1 - share**2 + share**2 * variance
        assert_allclose(codes["variance"][level, 0], expected, rtol=1e-5)
    assert codes["converged"].all()


def test_two_levels_are_bits_and_missing_values_tell_nothing() -> None:
    rng = np.random.default_rng(0)
    weights, offsets = rng.normal(size=(9, 3)), rng.normal(size=9)
    X = rng.integers(0, 2, (50, 9), dtype=np.uint8)
    observed = rng.random(X.shape) < 0.7
    observed[0] = False
    codes = interval_codes(X, weights, offsets, np.full(9, 2), observed)
    expected = probit_posterior(X, weights, offsets, np.zeros(3), np.ones(3), observed)
    assert_allclose(codes["mean"], expected.mean, atol=1e-9)
    assert_allclose(codes["variance"], expected.variance, atol=1e-9)
    assert_array_equal(codes["mean"][0], 0)
    assert_array_equal(codes["variance"][0], 1)
