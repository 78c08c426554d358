"""Curves with asymptotes against finite differences and numerical integration."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from pipeline.numerics.logistic.asymptotes import (
    Asymptotes,
    compute_log_probabilities,
    differentiate_curves,
    sum_expected_curvature,
    sum_item_scores,
    sum_observed_curvature,
)
from pipeline.numerics.logistic.categories.curves import LevelItems, compute_item_information
from pipeline.numerics.logistic.categories.fit import compute_person_fit
from pipeline.numerics.logistic.categories.row_posteriors import compute_row_posterior
from pipeline.numerics.logistic.centred_points import TraitItems

Floats = NDArray[np.float64]

Q, N_ITEMS, N_NODES = 2, 4, 9
RNG = np.random.default_rng(0)
POINTS = RNG.standard_normal((N_NODES, Q))
MASS = 5 * RNG.random((N_ITEMS, N_NODES))
ONES = MASS * RNG.random((N_ITEMS, N_NODES))
# Slopes, offset, logit of guessing, logit of slipping.
PARAMETERS = np.column_stack(
    [RNG.standard_normal((N_ITEMS, Q + 1)), RNG.normal(-1.5, 0.4, (N_ITEMS, 2))]
)
ITEMS = TraitItems(np.array([[1.2], [-0.8], [2.5]]), np.array([0.3, -1.0, 0.5]))
ASYMPTOTES = Asymptotes(np.array([0.2, 0.0, 0.1]), np.array([0.05, 0.3, 0.0]))
BINARY_ITEMS = LevelItems.from_binary(*ITEMS, ASYMPTOTES)


def split(parameters: Floats) -> tuple[Floats, Asymptotes]:
    eta = parameters[:, :Q] @ POINTS.T + parameters[:, Q : Q + 1]
    return eta, Asymptotes(expit(parameters[:, -2:-1]), expit(parameters[:, -1:]))


def sum_log_likelihood(parameters: Floats) -> float:
    log_one, log_zero = compute_log_probabilities(*split(parameters))
    return float((ONES * log_one + (MASS - ONES) * log_zero).sum())


def sum_gradient(parameters: Floats) -> Floats:
    derivatives = differentiate_curves(*split(parameters))
    return sum_item_scores(POINTS, ONES, MASS, derivatives)


def test_scores_and_curvature_are_finite_differences() -> None:
    h, width = 1e-5, Q + 3
    gradient = np.empty((N_ITEMS, width))
    curvature = np.empty((N_ITEMS, width, width))
    for c in range(width):
        step = np.zeros(width)
        step[c] = h
        change = sum_gradient(PARAMETERS + step) - sum_gradient(PARAMETERS - step)
        curvature[:, :, c] = -change / (2 * h)
        for i in range(N_ITEMS):
            own = np.zeros_like(PARAMETERS)
            own[i] = step
            change = sum_log_likelihood(PARAMETERS + own) - sum_log_likelihood(PARAMETERS - own)
            gradient[i, c] = change / (2 * h)
    eta, asymptotes = split(PARAMETERS)
    derivatives = differentiate_curves(eta, asymptotes)
    np.testing.assert_allclose(sum_gradient(PARAMETERS), gradient, atol=1e-7)
    observed = sum_observed_curvature(POINTS, ONES, MASS, eta, asymptotes, derivatives)
    np.testing.assert_allclose(observed, curvature, atol=1e-7)


def test_the_expected_curvature_is_the_observed_one_at_the_expected_counts() -> None:
    eta, asymptotes = split(PARAMETERS)
    derivatives = differentiate_curves(eta, asymptotes)
    ones = MASS * np.exp(compute_log_probabilities(eta, asymptotes)[0])
    np.testing.assert_allclose(
        sum_expected_curvature(POINTS, MASS, derivatives),
        sum_observed_curvature(POINTS, ones, MASS, eta, asymptotes, derivatives),
        atol=1e-12,
    )


def test_curves_far_from_the_middle_stay_exact() -> None:
    eta = np.array([-800.0, 800.0])
    without = Asymptotes(np.zeros(2), np.zeros(2))
    np.testing.assert_array_equal(compute_log_probabilities(eta, without), [[-800, 0], [0, -800]])
    by_one, by_zero = differentiate_curves(eta, without)
    np.testing.assert_allclose([by_one[0], by_zero[0]], [[1, 0], [0, -1]])
    with_both = Asymptotes(np.full(2, 0.2), np.full(2, 0.1))
    np.testing.assert_allclose(np.exp(compute_log_probabilities(eta, with_both)[0]), [0.2, 0.9])


def curve(x: float) -> Floats:
    g, s = ASYMPTOTES
    return g + (1 - s - g) * expit(x * ITEMS.weights[:, 0] + ITEMS.offsets)


@pytest.mark.parametrize("is_masked", [False, True])
def test_posteriors_are_those_of_numerical_integration(is_masked: bool) -> None:
    X = np.array([[1, 0, 1], [0, 1, 0], [1, 1, 1]], np.uint8)
    observed = np.array([[1, 1, 1], [1, 0, 1], [0, 0, 0]], np.uint8) if is_masked else None
    posterior = compute_row_posterior(X, observed, BINARY_ITEMS)
    mask = np.ones_like(X) if observed is None else observed

    def integrate(row: int, power: int) -> float:
        def integrand(x: float) -> float:
            answers = np.where(X[row] == 1, curve(x), 1 - curve(x))
            return float(np.prod(answers[mask[row] == 1]) * norm.pdf(x) * x**power)

        return float(quad(integrand, -9, 9, epsabs=1e-12, limit=200)[0])

    for row in range(3):
        total, first, second = (integrate(row, power) for power in range(3))
        mean = first / total
        assert posterior.log_likelihood[row] == pytest.approx(np.log(total), abs=1e-9)
        assert posterior.mean[row, 0] == pytest.approx(mean, abs=1e-9)
        variance = second / total - mean**2
        assert posterior.covariance[row, 0, 0] == pytest.approx(variance, abs=1e-9)
    assert posterior.standard_error.max() < 1e-4


def test_information_is_the_square_of_the_slope_over_the_variance() -> None:
    points, h = np.array([-2.0, 0.1, 1.5]), 1e-6
    found = compute_item_information(BINARY_ITEMS, points[:, None])[:, :, 0, 0].T
    for x, row in zip(points, found, strict=True):
        slope, P = (curve(x + h) - curve(x - h)) / (2 * h), curve(x)
        np.testing.assert_allclose(row, slope**2 / (P * (1 - P)), rtol=1e-6)


def test_person_fit_is_that_of_sums_over_items() -> None:
    X, codes = np.array([[1, 0, 1], [0, 1, 0]], np.uint8), np.array([[0.4], [-1.2]])
    fit = compute_person_fit(X, None, BINARY_ITEMS, codes)
    for n, (row, (x,)) in enumerate(zip(X, codes, strict=True)):
        P = curve(x)
        log_odds, squares = np.log(P / (1 - P)), (row - P) ** 2
        expected = P * np.log(P) + (1 - P) * np.log(1 - P)
        nats = np.where(row == 1, np.log(P), np.log(1 - P))
        root = np.sqrt((P * (1 - P) * log_odds**2).sum())
        assert fit.l_z[n] == pytest.approx((nats - expected).sum() / root)
        assert fit.infit[n] == pytest.approx(squares.sum() / (P * (1 - P)).sum())
        assert fit.outfit[n] == pytest.approx((squares / (P * (1 - P))).mean())
