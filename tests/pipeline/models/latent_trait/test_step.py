"""The M-step for items with one plane: weighted logistic regressions, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, log_expit
from sklearn.linear_model import LogisticRegression

from pipeline.models.latent_trait.design import make_level_design
from pipeline.models.latent_trait.step import ItemGroup, take_level_steps
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.scores import LevelSums

Floats = NDArray[np.float64]


def draw_counts(seed: int, n: int, n_points: int, q: int) -> tuple[Floats, Floats, Floats]:
    """Draw points, and ones and numbers of values at them, not whole, of slopes of about 1."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n_points, q))
    mass = rng.gamma(2.0, 10.0, (n, n_points))
    eta = rng.standard_normal((n, q)) @ points.T
    return points, mass * rng.beta(5 * expit(eta), 5 * expit(-eta)), mass


def maximize(
    points: Floats,
    ones: Floats,
    mass: Floats,
    prior_precision: float = 0.0,
    equal_slopes: bool = False,
    n_rounds: int = 10,
    pinned: int | None = None,
) -> Floats:
    """Return weights and offsets side by side after some M-steps from slopes of 0."""
    n, q = len(ones), points.shape[1]
    counts = np.ones((n, 2))
    if pinned is not None:
        counts[pinned, 0] = 0
    design = make_level_design(
        counts.ravel(), np.ones(n, np.int64), q, "graded", equal_slopes=equal_slopes
    )
    none = np.zeros((n, q + 1)), np.zeros((n, q + 1, q + 1))
    no_numbers = np.zeros((0, q + 1)), np.zeros((0, q + 1, q + 1)), np.zeros(0)
    sums = LevelSums(ones, mass, *none, *no_numbers)
    forms = design.fill(np.zeros(design.n_free))
    for _ in range(n_rounds):
        items = LevelItems.from_binary(forms[:, :-1].copy(), forms[:, -1].copy(), None)
        forms = take_level_steps(design, [ItemGroup(items, points, sums)], prior_precision)
    return forms


def fit_by_scikit_learn(
    design: Floats, ones: Floats, mass: Floats, prior_precision: float = 0.0, **settings: bool
) -> Floats:
    """Return the coefficients, with each point as a row of ones and a row of zeros."""
    model = LogisticRegression(
        C=1 / prior_precision if prior_precision else np.inf,
        solver="newton-cholesky",
        tol=1e-12,
        **settings,
    )
    outcomes = np.repeat([1, 0], len(design))
    model.fit(np.vstack([design, design]), outcomes, np.concatenate([ones, mass - ones]))
    return np.append(model.coef_[0], model.intercept_)


@pytest.mark.parametrize("q", [1, 2, 3])
@pytest.mark.parametrize("prior_precision", [0.0, 3.0])
def test_forms_are_those_of_scikit_learn(q: int, prior_precision: float) -> None:
    points, ones, mass = draw_counts(q, 5, 40, q)
    forms = maximize(points, ones, mass, prior_precision)
    for own, *counts in zip(forms, ones, mass, strict=True):
        expected = fit_by_scikit_learn(points, *counts, prior_precision)
        np.testing.assert_allclose(own, expected, atol=1e-7)


def test_equal_slopes_are_those_of_scikit_learn() -> None:
    """One regression on the common point and an indicator of each feature."""
    points, ones, mass = draw_counts(0, 4, 30, 1)
    forms = maximize(points, ones, mass, equal_slopes=True)
    design = np.column_stack([np.tile(points, (4, 1)), np.repeat(np.eye(4), 30, axis=0)])
    slope, *offsets, _ = fit_by_scikit_learn(
        design, ones.ravel(), mass.ravel(), fit_intercept=False
    )
    np.testing.assert_allclose(forms[:, 0], slope, atol=1e-7)
    np.testing.assert_allclose(forms[:, 1], offsets, atol=1e-7)


@pytest.mark.parametrize("n_rounds", [1, 2, 4])
def test_no_step_lowers_the_objective(n_rounds: int) -> None:
    points, ones, mass = draw_counts(5, 6, 25, 2)
    ones[0] = np.where(points[:, 0] > 0, mass[0], 0.0)  # separable: its slope has no maximum

    def score(forms: Floats) -> Floats:
        eta = forms[:, :-1] @ points.T + forms[:, -1:]
        nats = (ones * log_expit(eta) + (mass - ones) * log_expit(-eta)).sum(axis=1)
        return np.asarray(nats - 0.5 * 0.1 * (forms[:, :-1] ** 2).sum(axis=1))

    reached = [score(maximize(points, ones, mass, 0.1, n_rounds=n)) for n in (n_rounds, 5)]
    assert (reached[1] >= reached[0] - 1e-9).all()


def test_a_pinned_item_stays_and_leaves_others_alone() -> None:
    points, ones, mass = draw_counts(3, 4, 30, 2)
    alone = maximize(points, ones, mass)
    beside = maximize(points, ones, mass, pinned=1)
    assert (beside[1, :-1] == 0).all()
    np.testing.assert_allclose(np.delete(beside, 1, 0), np.delete(alone, 1, 0), atol=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 9))
def test_any_counts_give_numbers(seed: int, q: int, n_points: int) -> None:
    """Few points, separated ones, empty points, ratios next to 0 and 1, masses of any size."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n_points, q))
    mass = rng.integers(0, 4, (4, n_points)) * 10.0 ** rng.integers(-3, 6, (4, 1))
    ones = mass * rng.choice([0, 1e-12, 0.3, 0.5, 1 - 1e-9, 1], mass.shape)
    with np.errstate(all="raise", under="ignore"):
        forms = maximize(points, ones, mass, n_rounds=3)
    assert np.isfinite(forms).all()
