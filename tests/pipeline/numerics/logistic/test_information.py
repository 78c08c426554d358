"""Information, short tests and person fit against quadrature, enumeration and sums item by item."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from pipeline.numerics.logistic.asymptotes import Asymptotes, compute_probabilities
from pipeline.numerics.logistic.categories.curves import LevelItems, compute_item_information
from pipeline.numerics.logistic.categories.fit import compute_person_fit
from pipeline.numerics.logistic.categories.row_posteriors import compute_row_posterior
from pipeline.numerics.logistic.information import average_reliability, choose_short_test

Floats = NDArray[np.float64]
SLOPES = np.array([0.5, 1.2, 2.0, -0.9, 3.0, 1.0])
OFFSETS = np.array([0.3, -1.0, 2.5, 0.0, -4.0, 1.5])
ITEMS = LevelItems.from_binary(SLOPES[:, None], OFFSETS)


def compute_information(points: Floats) -> Floats:
    return compute_item_information(ITEMS, points[:, None])[:, :, 0, 0].T


def curve(theta: float, i: int) -> float:
    return 1 / (1 + math.exp(-SLOPES[i] * theta - OFFSETS[i]))


def test_information_is_the_expected_square_of_the_score() -> None:
    points, step = np.array([-2.0, 0.1, 1.7]), 1e-5
    found = compute_information(points)
    for n, theta in enumerate(points):
        for i in range(len(SLOPES)):
            p, moved = curve(theta, i), curve(theta + step, i)
            scores = {1: math.log(moved / p) / step, 0: math.log((1 - moved) / (1 - p)) / step}
            expected = p * scores[1] ** 2 + (1 - p) * scores[0] ** 2
            assert found[n, i] == pytest.approx(expected, rel=1e-3)


def compute_reliability(items: list[int]) -> float:
    def integrand(theta: float) -> float:
        total = sum(SLOPES[i] ** 2 * curve(theta, i) * (1 - curve(theta, i)) for i in items)
        return float(norm.pdf(theta) * total / (total + 1))

    return float(quad(integrand, -10, 10, epsabs=1e-12)[0])


def test_marginal_reliability_is_that_of_adaptive_quadrature() -> None:
    found = average_reliability(lambda points: compute_information(points).sum(axis=1))
    assert found == pytest.approx(compute_reliability([*range(6)]), abs=1e-9)


def test_a_short_test_adds_the_best_item_each_time() -> None:
    chosen, reliability = choose_short_test(compute_information, 4)
    for n in range(4):
        before, left = chosen[:n].tolist(), set(range(6)) - set(chosen[:n].tolist())
        best = max(left, key=lambda i: compute_reliability([*before, i]))
        assert chosen[n] == best
        assert reliability[n] == pytest.approx(compute_reliability([*before, best]), abs=1e-9)
    best_of_all = max(compute_reliability([*items]) for items in combinations(range(6), 4))
    assert reliability[3] > 0.98 * best_of_all


@pytest.mark.parametrize("masked", [False, True])
def test_person_fit_is_that_of_sums_over_items(masked: bool) -> None:
    rng = np.random.default_rng(3)
    X = rng.integers(0, 2, (20, 6), np.uint8)
    observed = (rng.random(X.shape) < 0.7).astype(np.uint8) if masked else None
    codes = rng.standard_normal((20, 1))
    found = compute_person_fit(X, observed, ITEMS, codes)
    for n in range(20):
        items = [i for i in range(6) if observed is None or observed[n, i]]
        p = {i: curve(codes[n, 0], i) for i in items}
        log_p = sum(math.log(p[i] if X[n, i] else 1 - p[i]) for i in items)
        patterns = [*product((0, 1), repeat=len(items))]
        nats = [
            sum(math.log(p[i] if x else 1 - p[i]) for i, x in zip(items, pattern, strict=True))
            for pattern in patterns
        ]
        mass = np.exp(nats)
        mean = float(mass @ nats)
        deviation = math.sqrt(mass @ np.square(nats) - mean**2)
        assert found.l_z[n] == pytest.approx((log_p - mean) / deviation, abs=1e-9)
        squares = [(X[n, i] - p[i]) ** 2 for i in items]
        variances = [p[i] * (1 - p[i]) for i in items]
        assert found.infit[n] == pytest.approx(sum(squares) / sum(variances))
        assert found.outfit[n] == pytest.approx(np.mean(np.divide(squares, variances)))


def test_rows_without_uncertain_answers_fit() -> None:
    X, nothing = np.ones((2, 6), np.uint8), np.zeros((2, 6), np.uint8)
    certain = LevelItems.from_binary(np.zeros((6, 1)), np.full(6, 800.0))
    fits = [
        compute_person_fit(X, nothing, ITEMS, np.zeros((2, 1))),
        compute_person_fit(X, None, certain, np.zeros((2, 1))),
    ]
    np.testing.assert_array_equal(fits[0].l_z, 0.0)
    np.testing.assert_array_equal(fits[0].infit, 1.0)
    np.testing.assert_array_equal(fits[0].outfit, 1.0)
    assert np.isfinite([*fits[1]]).all()


def test_misfit_is_seen() -> None:
    """Answers against the curves have low l_z and large residuals."""
    theta = np.full((1, 1), 0.5)
    likely = (SLOPES * 0.5 + OFFSETS > 0).astype(np.uint8)[None]
    fitting = compute_person_fit(likely, None, ITEMS, theta)
    opposite = compute_person_fit(1 - likely, None, ITEMS, theta)
    assert opposite.l_z[0] < -2 < 0 < fitting.l_z[0]
    assert opposite.outfit[0] > 2 > 1 > fitting.outfit[0]


def test_l_z_star_is_about_normal_at_estimated_codes() -> None:
    rng, n_rows, n_items = np.random.default_rng(0), 4000, 30
    weights, offsets = rng.uniform(0.8, 2, (n_items, 1)), rng.normal(0, 1.2, n_items)
    traits = rng.standard_normal((n_rows, 1))
    X = (rng.random((n_rows, n_items)) < expit(traits @ weights.T + offsets)).astype(np.uint8)
    items = LevelItems.from_binary(weights, offsets)
    codes = compute_row_posterior(X, None, items).mean
    fit = compute_person_fit(X, None, items, codes)
    assert (fit.l_z < -1.645).mean() < 0.035
    assert 0.04 < (fit.l_z_star < -1.645).mean() < 0.07
    assert fit.l_z_star.std() == pytest.approx(1.0, abs=0.05)


def test_l_z_star_does_not_change_with_the_code_to_first_order() -> None:
    rng, h = np.random.default_rng(1), 1e-4
    weights, offsets = rng.uniform(0.5, 2, (12, 2)), rng.normal(0, 1, 12)
    asymptotes = Asymptotes(np.full(12, 0.2), np.zeros(12))
    codes = rng.standard_normal((50, 2))
    P: Any = compute_probabilities(codes @ weights.T + offsets, asymptotes)

    def expect(moved: Floats) -> Floats:
        """Return the mean of the statistic over answers that have the probabilities P."""
        # It is linear in the answers, so that of P is the mean.
        items = LevelItems.from_binary(weights, offsets, asymptotes)
        return compute_person_fit(P, None, items, moved).l_z_star

    for step in h * np.eye(2):
        slope = (expect(codes + step) - expect(codes - step)) / (2 * h)
        np.testing.assert_allclose(slope, 0, atol=1e-3)
