"""Polyserial correlations against SciPy's optimization of the likelihood."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from pipeline.numerics.gaussian.polyserial import (
    MAX_Z,
    NOT_OBSERVED,
    NewtonBounds,
    PolyserialPairs,
    step_polyserial,
    sum_polyserial_derivatives,
)

Floats = NDArray[np.float64]
Levels = NDArray[np.uint8]
N_LEVELS = np.array([2, 4])
CUTS = np.array([0.3, -1.2, 0.1, 0.9])


def draw_rows(rho: float, n_rows: int = 300) -> tuple[Floats, Levels]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n_rows)
    y = rho * x + np.sqrt(1 - rho**2) * rng.standard_normal(n_rows)
    levels = np.stack([np.searchsorted(cuts, y) for cuts in (CUTS[:1], CUTS[1:])])
    return x[None], levels.astype(np.uint8)


def make_pairs(z: float) -> PolyserialPairs:
    shape = (1, 2)
    return PolyserialPairs(
        CUTS[None], np.zeros(shape), np.ones(shape), np.full(shape, z), np.ones(shape, np.bool_)
    )


def log_likelihood(rho: float, x: Floats, levels: Levels, feature: int) -> float:
    bounds = np.array([-np.inf, *(CUTS[:1], CUTS[1:])[feature], np.inf])
    scale = np.sqrt(1 - rho**2)
    upper = (bounds[levels[feature] + 1] - rho * x[0]) / scale
    lower = (bounds[levels[feature]] - rho * x[0]) / scale
    flip = lower > 0
    lower, upper = np.where(flip, -upper, lower), np.where(flip, -lower, upper)
    a, b = norm.logcdf(upper), norm.logcdf(lower)
    return float((a + np.log1p(-np.exp(b - a))).sum())


@pytest.mark.parametrize("rho", [-0.97, -0.4, 0.0, 0.6, 0.9995])
def test_newton_steps_find_the_maximum_of_the_likelihood(rho: float) -> None:
    x, levels = draw_rows(rho)
    bound = np.full((1, 2), MAX_Z)
    pairs, bounds = make_pairs(0.2), NewtonBounds(-bound, bound)
    for _ in range(40):
        sums = sum_polyserial_derivatives(pairs, x, levels, np.ones(300), N_LEVELS)
        pairs, bounds = step_polyserial(pairs, bounds, sums)
    assert not pairs.is_active.any()
    for feature in (0, 1):
        found = minimize_scalar(
            lambda z, feature=feature: -log_likelihood(np.tanh(z), x, levels, feature),
            bounds=(-7, 7),
            method="bounded",
            options={"xatol": 1e-10},
        )
        assert pairs.z[0, feature] == pytest.approx(found.x, abs=1e-6)


@pytest.mark.parametrize("z", [-2.0, 0.1, 1.3, 4.0])
def test_derivatives_are_those_of_the_likelihood(z: float) -> None:
    x, levels = draw_rows(0.5)
    slope, curvature, _ = sum_polyserial_derivatives(
        make_pairs(z), x, levels, np.ones(300), N_LEVELS
    )
    for feature in (0, 1):
        h = 1e-4
        values = [log_likelihood(np.tanh(place), x, levels, feature) for place in (z - h, z, z + h)]
        assert slope[0, feature] == pytest.approx((values[2] - values[0]) / (2 * h), rel=1e-5)
        second = (values[2] - 2 * values[1] + values[0]) / h**2
        assert curvature[0, feature] == pytest.approx(second, rel=1e-3)


def test_missing_values_and_weights_select_rows() -> None:
    x, levels = draw_rows(0.5)
    rng = np.random.default_rng(1)
    weights = rng.integers(0, 3, 300)
    missing = rng.random((2, 300)) < 0.2
    masked = np.where(missing[0], np.nan, x), np.where(missing[1], np.uint8(NOT_OBSERVED), levels)
    sums = sum_polyserial_derivatives(make_pairs(0.7), *masked, weights.astype(float), N_LEVELS)
    rows = np.repeat(np.arange(300), weights * ~missing.any(axis=0))
    expected = sum_polyserial_derivatives(
        make_pairs(0.7), x[:, rows], levels[:, rows], np.ones(len(rows)), N_LEVELS
    )
    assert_allclose(sums, expected, rtol=1e-10)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_levels_that_follow_the_values_have_the_largest_correlation(sign: float) -> None:
    x = np.linspace(-2, 2, 50)[None]
    levels = np.stack([np.searchsorted(cuts, sign * x[0]) for cuts in (CUTS[:1], CUTS[1:])])
    bound = np.full((1, 2), MAX_Z)
    pairs, bounds = make_pairs(0.0), NewtonBounds(-bound, bound)
    for _ in range(60):
        sums = sum_polyserial_derivatives(pairs, x, levels.astype(np.uint8), np.ones(50), N_LEVELS)
        assert np.isfinite(sums).all()
        pairs, bounds = step_polyserial(pairs, bounds, sums)
    assert not pairs.is_active.any()
    assert_allclose(pairs.z, sign * MAX_Z)
