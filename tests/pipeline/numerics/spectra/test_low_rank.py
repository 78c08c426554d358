"""Tests of the weighted low-rank approximation of correlations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.numerics.spectra.low_rank import find_low_rank_fits

Floats = NDArray[np.float64]


def make_correlations(
    loadings: Floats, correlation: Floats | None = None
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return exact correlations with random weights, and all features as anchors."""
    q = loadings.shape[1]
    values = loadings @ (np.eye(q) if correlation is None else correlation) @ loadings.T
    weights = np.random.default_rng(9).uniform(200, 2000, values.shape)
    return values, weights + weights.T, np.arange(len(loadings))


def test_loadings_are_recovered() -> None:
    loadings = np.random.default_rng(0).uniform(-0.8, 0.8, (12, 2))
    fit = find_low_rank_fits(
        *make_correlations(loadings), np.ones((12, 2), bool), np.random.default_rng(1)
    )[0]
    np.testing.assert_allclose(fit.loadings @ fit.loadings.T, loadings @ loadings.T, atol=5e-3)
    assert (fit.correlation == np.eye(2)).all()


def test_anchors_suffice() -> None:
    loadings = np.random.default_rng(2).uniform(-0.8, 0.8, (60, 2))
    values, weights, _ = make_correlations(loadings)
    anchors = np.arange(0, 60, 6)
    fit = find_low_rank_fits(
        values[anchors],
        weights[anchors],
        anchors,
        np.ones((60, 2), bool),
        np.random.default_rng(1),
    )[0]
    np.testing.assert_allclose(fit.loadings @ fit.loadings.T, loadings @ loadings.T, atol=3e-2)


def test_correlated_components_of_a_pattern_are_recovered() -> None:
    loads = np.arange(10)[:, None] // 5 == np.arange(2)
    loadings = np.where(loads, np.random.default_rng(3).uniform(0.4, 0.9, (10, 2)), 0.0)
    correlation = np.array([[1.0, 0.5], [0.5, 1.0]])
    fit = find_low_rank_fits(
        *make_correlations(loadings, correlation),
        loads,
        np.random.default_rng(1),
        are_correlated=True,
    )[0]
    np.testing.assert_allclose(np.abs(fit.loadings), loadings, atol=1e-2)
    sign = np.sign(fit.loadings.sum(axis=0)).prod()
    assert sign * fit.correlation[0, 1] == pytest.approx(0.5, abs=1e-2)


def test_weakly_linked_parts_have_two_minima() -> None:
    loadings = np.full((8, 1), 0.7)
    values, _, anchors = make_correlations(loadings)
    is_within = (np.arange(8) < 4)[:, None] == (np.arange(8) < 4)
    weights = np.where(is_within, 1000.0, 2.0)
    fits = find_low_rank_fits(
        values, weights, anchors, np.ones((8, 1), bool), np.random.default_rng(0)
    )
    assert len(fits) == 2
    assert (fits[0].loadings * fits[0].loadings[0] > 0).all()
    assert (fits[1].loadings[4:] * fits[1].loadings[0] < 0).all()
    # 16 pairs between the parts, with a weight of 2 and residuals of 0.98.
    assert fits[1].loss - fits[0].loss == pytest.approx(16 * 2 * 0.98**2, rel=0.1)


def test_pairs_of_a_feature_with_itself_do_not_count() -> None:
    loadings = np.random.default_rng(4).uniform(0.3, 0.8, (6, 1))
    values, weights, anchors = make_correlations(loadings)
    np.fill_diagonal(values, 1.0)
    fit = find_low_rank_fits(
        values, weights, anchors, np.ones((6, 1), bool), np.random.default_rng(0)
    )[0]
    np.testing.assert_allclose(fit.loadings @ fit.loadings.T, loadings @ loadings.T, atol=1e-2)
