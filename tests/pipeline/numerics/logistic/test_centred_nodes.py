"""Sums on centred nodes against exact integration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from pipeline.numerics.logistic.centred_nodes import centred_e_step
from pipeline.numerics.logistic.centred_points import TraitItems, posterior_by_quadrature
from pipeline.numerics.logistic.parameter_expansion import sum_trait_moments

N_ROWS = 300


def draw_items(q: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw rows of 80 items with missing values, the mask, and the model that they follow."""
    rng = np.random.default_rng(q)
    weights, offsets = rng.standard_normal((80, q)), rng.standard_normal(80)
    p = expit(rng.standard_normal((N_ROWS, q)) @ weights.T + offsets)
    observed = (rng.random(p.shape) < 0.8).astype(np.uint8)
    observed[7] = 0
    return (rng.random(p.shape) < p).astype(np.uint8), observed, weights, offsets


@pytest.mark.parametrize("q", [1, 2, 3])
def test_log_likelihood_and_moments_are_those_of_exact_integration(q):
    X, observed, weights, offsets = draw_items(q)
    sums = centred_e_step(X, observed, weights, offsets)
    exact = posterior_by_quadrature(X, observed, TraitItems(weights, offsets))
    assert sums.log_likelihood == pytest.approx(exact.log_likelihood.sum(), abs=1e-3 * N_ROWS)
    moments = sum_trait_moments(exact.mean, exact.covariance)
    np.testing.assert_allclose(sums.moments, moments, atol=1e-3 * N_ROWS)


@pytest.mark.parametrize(("item", "column"), [(0, 0), (5, 1), (9, 2)])
def test_the_gradient_is_that_of_the_log_likelihood(item, column):
    X, observed, weights, offsets = draw_items(2)
    packed, step = np.column_stack([weights, offsets]), 1e-4

    def compute_log_likelihood(change: float) -> float:
        moved = packed.copy()
        moved[item, column] += change
        items = TraitItems(moved[:, :-1].copy(), moved[:, -1].copy())
        return float(posterior_by_quadrature(X, observed, items).log_likelihood.sum())

    slope = (compute_log_likelihood(step) - compute_log_likelihood(-step)) / (2 * step)
    found = centred_e_step(X, observed, weights, offsets).gradient[item, column]
    assert found == pytest.approx(slope, abs=0.02)


def test_sums_of_parts_are_those_of_the_whole():
    X, observed, weights, offsets = draw_items(2)
    whole = centred_e_step(X, observed, weights, offsets)
    parts = [
        centred_e_step(X[rows], observed[rows], weights, offsets)
        for rows in (slice(100), slice(100, None))
    ]
    *totals, nats = whole
    for total, *values in zip(totals, *(part[:-1] for part in parts), strict=True):
        np.testing.assert_allclose(total, sum(values), rtol=1e-11, atol=1e-10)
    by_row = np.concatenate([part.row_log_likelihoods for part in parts])
    np.testing.assert_allclose(nats, by_row, rtol=1e-11)


def test_missing_values_are_left_out():
    X, observed, weights, offsets = draw_items(2)
    flipped = X ^ (1 - observed)
    assert (flipped != X).any()
    for one, other in zip(
        centred_e_step(X, observed, weights, offsets),
        centred_e_step(flipped, observed, weights, offsets),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
