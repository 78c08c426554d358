"""Influence on polyserial correlations, against estimates from rows of which one weighs more."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri
from scipy.stats import norm

from pipeline.numerics.gaussian.polyserial import PolyserialPairs
from pipeline.numerics.gaussian.polyserial_influence import (
    PolyserialInfluence,
    evaluate_influence,
    polyserial_influence,
)

Floats = NDArray[np.float64]
THRESHOLDS = np.array([0.3, -1.0, 0.2, 1.1])  # of a binary feature, and of one with 4 levels
N_LEVELS = np.array([2, 4])


def make_pairs(rho: tuple[float, float]) -> PolyserialPairs:
    z = np.arctanh([rho])
    ones = np.ones_like(z)
    return PolyserialPairs(THRESHOLDS[None], 0 * ones, ones, z, ones.astype(np.bool_))


def find_probabilities(x: Floats, thresholds: Floats, rho: float) -> Floats:
    """P(level | x), (n_levels, n_x)."""
    bounds = np.concatenate([[-np.inf], thresholds, [np.inf]])[:, None]
    return np.diff(norm.cdf((bounds - rho * x) / np.sqrt(1 - rho**2)), axis=0)


def estimate_two_step(x: Floats, weights: Floats) -> float:
    """The literal two-step estimate, given weights of all levels and values of x."""
    weights = weights / weights.sum()
    mean = (weights.sum(axis=0) * x).sum()
    deviation = np.sqrt((weights.sum(axis=0) * (x - mean) ** 2).sum())
    thresholds = ndtri(np.cumsum(weights.sum(axis=1))[:-1])
    standard = (x - mean) / deviation

    def slope(rho: float) -> float:
        up, down = (
            np.log(np.maximum(find_probabilities(standard, thresholds, r), 1e-300))
            for r in (rho + 1e-5, rho - 1e-5)
        )
        return float((weights * (up - down)).sum())

    return float(brentq(slope, -0.98, 0.98, xtol=1e-13))


@pytest.mark.parametrize("rho", [(0.0, 0.6), (-0.5, -0.8)])
def test_a_row_moves_the_two_step_estimate(rho: tuple[float, float]) -> None:
    pairs = make_pairs(rho)
    influence = polyserial_influence(pairs, np.ones((1, 2), np.bool_), N_LEVELS)
    x, added = np.linspace(-7, 7, 561), 1e-4
    for f, own in enumerate([THRESHOLDS[:1], THRESHOLDS[1:]]):
        population = find_probabilities(x, own, rho[f]) * norm.pdf(x)
        population /= population.sum()
        for level, place in [(0, 200), (len(own), 200), (1, 330)]:
            moved = []
            for share in (-added, added):
                weights = (1 - share) * population
                weights[level, place] += share
                moved.append(estimate_two_step(x, weights))
            levels = np.zeros((1, 2), np.uint8)
            levels[0, f] = level
            found = evaluate_influence(influence, pairs, x[[place]], levels, N_LEVELS, 0)
            expected = (moved[1] - moved[0]) / (2 * added)
            assert found[0, f] == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_deviations_are_of_simulated_rows() -> None:
    pairs, rng = make_pairs((0.4, -0.7)), np.random.default_rng(0)
    influence = polyserial_influence(pairs, np.ones((1, 2), np.bool_), N_LEVELS)
    x = rng.standard_normal(200_000)
    for f, rho in enumerate((0.4, -0.7)):
        y = rho * x + np.sqrt(1 - rho**2) * rng.standard_normal(len(x))
        levels = np.zeros((len(x), 2), np.uint8)
        levels[:, f] = np.searchsorted(THRESHOLDS[:1] if f == 0 else THRESHOLDS[1:], y)
        moves = evaluate_influence(influence, pairs, x, levels, N_LEVELS, 0)[:, f]
        assert moves.mean() == pytest.approx(0, abs=0.01)
        assert influence.deviation[0, f] == pytest.approx(moves.std(), rel=0.01)


def test_pairs_without_information_have_no_influence() -> None:
    is_informative = np.array([[True, False]])
    influence: PolyserialInfluence = polyserial_influence(
        make_pairs((0.4, 0.0)), is_informative, N_LEVELS
    )
    assert np.isnan(influence.deviation[0, 1])
    assert_allclose(influence.bits[0, 1:], 0)
    assert influence.score[0, 1] == influence.value[0, 1] == influence.square[0, 1] == 0
