"""Outcomes of classes against row-by-row computations, and against the truth of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import chi2, norm

from pipeline.errors import FitError
from pipeline.numerics.three_step import (
    Correction,
    OutcomeTable,
    compare_classes,
    compute_classification_errors,
    estimate_outcome,
)
from tests.support.derivatives import differentiate, differentiate_twice

Floats = NDArray[np.float64]
P = np.array([[0.75] * 5 + [0.25], [0.75, 0.75, 0.25, 0.25, 0.6, 0.3], [0.3] * 5 + [0.75]])
SIZES = np.array([0.45, 0.35, 0.2])
MEANS = np.array([-1.0, 0.0, 1.5])
SHARES = np.array([[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.2, 0.7]])
STEP = 1e-4


class Drawn(NamedTuple):
    """Rows with their assigned class, P(t | x), two outcomes and weights."""

    assigned: NDArray[np.intp]
    posterior: Floats
    score: Floats
    party: NDArray[np.intp]
    weights: Floats

    @property
    def errors(self) -> Floats:
        indicators = np.eye(3)[self.assigned] * self.weights[:, None]
        return compute_classification_errors(self.posterior.T @ indicators)

    def tabulate(self, values: NDArray[np.generic], is_survey: bool = False) -> OutcomeTable:
        distinct, places = np.unique(values.astype(float), return_inverse=True)
        sums = np.zeros((2, 3, len(distinct)))
        np.add.at(sums[0], (self.assigned, places), self.weights)
        squares = self.weights**2 if is_survey else self.weights
        np.add.at(sums[1], (self.assigned, places), squares)
        return OutcomeTable(distinct, *sums)


def draw_rows(n_rows: int, seed: int = 0, *, decimals: int = 1) -> Drawn:
    rng = np.random.default_rng(seed)
    classes = rng.choice(3, n_rows, p=SIZES)
    X = rng.random((n_rows, 6)) < P[classes]
    joint = np.log(SIZES) + X @ np.log(P).T + ~X @ np.log1p(-P).T
    posterior = softmax(joint, axis=1)
    score = np.round(MEANS[classes] + rng.standard_normal(n_rows), decimals)
    party = (rng.random((n_rows, 1)) > SHARES.cumsum(axis=1)[classes]).sum(axis=1)
    weights = rng.integers(1, 4, n_rows).astype(float)
    return Drawn(posterior.argmax(axis=1), posterior, score, party, weights)


@pytest.mark.parametrize("is_survey", [False, True])
@pytest.mark.parametrize("is_categorical", [False, True])
def test_bch_is_a_weighted_regression_of_rows(is_survey: bool, is_categorical: bool) -> None:
    rows = draw_rows(700)
    values = rows.party if is_categorical else rows.score
    found = estimate_outcome(rows.tabulate(values, is_survey), rows.errors, "bch", is_categorical)
    weights = rows.weights[:, None] * np.linalg.inv(rows.errors)[rows.assigned]
    targets = np.eye(3)[rows.party] if is_categorical else rows.score[:, None]
    expected = weights.T @ targets / weights.sum(axis=0)[:, None]
    np.testing.assert_allclose(found.estimates, expected, rtol=1e-9)
    np.testing.assert_allclose(found.sizes, weights.sum(axis=0) / weights.sum(), rtol=1e-9)
    scores = weights[:, :, None] * (targets[:, None] - expected) / weights.sum(axis=0)[:, None]
    flat = scores.reshape(len(scores), -1)
    squared = flat if is_survey else flat / rows.weights[:, None]
    np.testing.assert_allclose(found.covariance, squared.T @ flat, rtol=1e-8, atol=1e-15)


def check_maximum(
    rows: Drawn, log_likelihood: Callable[[Floats], Floats], at: Floats, reported: slice
) -> Floats:
    """Check that scores add up to 0, and return the sandwich of the reported parameters."""
    scores = differentiate(log_likelihood, at, STEP)
    np.testing.assert_allclose(rows.weights @ scores, 0.0, atol=2e-3)
    hessian = differentiate_twice(lambda x: float(rows.weights @ log_likelihood(x)), at, STEP)
    inverse = np.linalg.inv(-hessian)
    covariance = inverse @ (scores.T * rows.weights) @ scores @ inverse
    return np.asarray(covariance[reported, reported])


def test_ml_of_a_number_is_the_maximum_of_its_likelihood() -> None:
    rows = draw_rows(500)
    found = estimate_outcome(rows.tabulate(rows.score), rows.errors, "ml", False)
    by_row = np.log(rows.errors[:, rows.assigned]).T

    def log_likelihood(at: Floats) -> Floats:
        sizes = log_softmax(np.append(at[6:], 0.0))
        densities = norm.logpdf(rows.score[:, None], at[:3], np.exp(at[3:6]))
        return np.asarray(logsumexp(sizes + by_row + densities, axis=1))

    joint = np.log(found.sizes) + by_row
    deviations = np.ones(3)
    for _ in range(500):  # given the means and sizes, the variances are found by EM
        densities = norm.logpdf(rows.score[:, None], found.estimates[:, 0], deviations)
        shares = softmax(joint + densities, axis=1) * rows.weights[:, None]
        residuals = (rows.score[:, None] - found.estimates[:, 0]) ** 2
        deviations = np.sqrt((shares * residuals).sum(axis=0) / shares.sum(axis=0))
    ratios = np.log(found.sizes[:2] / found.sizes[2])
    at = np.concatenate([found.estimates[:, 0], np.log(deviations), ratios])
    expected = check_maximum(rows, log_likelihood, at, slice(3))
    np.testing.assert_allclose(found.covariance, expected, rtol=2e-3, atol=1e-6)


def test_ml_of_texts_is_the_maximum_of_its_likelihood() -> None:
    rows = draw_rows(2000)
    found = estimate_outcome(rows.tabulate(rows.party), rows.errors, "ml", True)
    by_row = np.log(rows.errors[:, rows.assigned]).T

    def log_likelihood(at: Floats) -> Floats:
        shares = at[:6].reshape(3, 2)
        full = np.column_stack([shares, 1 - shares.sum(axis=1)])
        sizes = log_softmax(np.append(at[6:], 0.0))
        return np.asarray(logsumexp(sizes + by_row + np.log(full[:, rows.party]).T, axis=1))

    ratios = np.log(found.sizes[:2] / found.sizes[2])
    at = np.concatenate([found.estimates[:, :2].ravel(), ratios])
    expected = check_maximum(rows, log_likelihood, at, slice(6))
    places = np.arange(9).reshape(3, 3)[:, :2].ravel()
    block = found.covariance[np.ix_(places, places)]
    np.testing.assert_allclose(block, expected, rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("is_categorical", [False, True])
def test_corrections_find_the_truth_that_assigned_classes_miss(is_categorical: bool) -> None:
    rows = draw_rows(20_000, seed=3)._replace(weights=np.ones(20_000))
    truth = SHARES if is_categorical else MEANS[:, None]
    table = rows.tabulate(rows.party if is_categorical else rows.score)
    corrections: tuple[Correction, ...] = ("none", "bch", "ml")
    distances = {}
    for correction in corrections:
        found = estimate_outcome(table, rows.errors, correction, is_categorical)
        distances[correction] = np.abs((found.estimates - truth) / found.errors).max()
    assert distances["none"] > 10
    assert distances["bch"] < 3
    assert distances["ml"] < 3


def test_the_test_of_two_classes_is_that_of_their_difference() -> None:
    rows = draw_rows(500)
    merged = rows._replace(assigned=np.minimum(rows.assigned, 1))
    table = merged.tabulate(rows.score)
    table = OutcomeTable(table.values, table.weights[:2], table.squares[:2])
    found = estimate_outcome(table, np.array([[0.9, 0.1], [0.2, 0.8]]), "bch", False)
    test = compare_classes(found)
    variance = found.covariance[0, 0] + found.covariance[1, 1] - 2 * found.covariance[0, 1]
    expected = (found.estimates[0, 0] - found.estimates[1, 0]) ** 2 / variance
    assert (test.chi2, test.df) == (pytest.approx(expected), 1)
    assert test.p == pytest.approx(chi2.sf(expected, 1))


def test_a_class_without_rows_is_refused() -> None:
    table = OutcomeTable(np.arange(2.0), np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(FitError, match="no row is most likely of them"):
        estimate_outcome(table, np.array([[1.0, 0.0], [1.0, 0.0]]), "bch", False)
