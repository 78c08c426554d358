"""Weighted logistic regressions against scikit-learn, at the ends of data, and inside EM."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logit
from sklearn.linear_model import LogisticRegression

from pipeline.errors import FitError
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    draw_nodes,
    gauss_hermite,
    node_statistics,
)
from pipeline.numerics.logistic.logistic_regression import MAX_SLOPE, LogisticFit, logistic_m_step
from tests.support.data import find_shared_data

Floats = NDArray[np.float64]
seeds = st.integers(0, 2**32 - 1)


def random_counts(seed: int, n_features: int, n_points: int, n_components: int):
    """Points, ones and mass, not whole, of slopes of about 1."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n_points, n_components))
    mass = rng.gamma(2.0, 10.0, (n_features, n_points))
    eta = rng.standard_normal((n_features, n_components)) @ points.T
    ones = mass * rng.beta(5 * expit(eta), 5 * expit(-eta))
    return points, ones, mass


def flat_start(n_features: int, n_components: int) -> tuple[Floats, Floats]:
    return np.zeros((n_features, n_components)), np.zeros(n_features)


def objective(points, ones, mass, weights, offsets, prior_precision=0.0) -> Floats:
    """f of each feature."""
    eta = weights @ points.T + offsets[:, None]
    data = (ones * log_expit(eta) + (mass - ones) * log_expit(-eta)).sum(axis=1)
    return data - prior_precision / 2 * (weights**2).sum(axis=1)


def by_scikit_learn(design, ones, mass, prior_precision=0.0, fit_intercept=True):
    """One feature's coefficients, each point as a row of ones and a row of zeros."""
    model = LogisticRegression(
        C=1 / prior_precision if prior_precision else np.inf,
        fit_intercept=fit_intercept,
        solver="newton-cholesky",
        tol=1e-12,
    )
    outcomes = np.repeat([1, 0], len(design))
    model.fit(np.vstack([design, design]), outcomes, np.concatenate([ones, mass - ones]))
    return model.coef_[0], model.intercept_


@pytest.mark.parametrize("n_components", [1, 2, 3])
@pytest.mark.parametrize("prior_precision", [0.0, 3.0])
def test_coefficients_are_those_of_scikit_learn(n_components: int, prior_precision: float) -> None:
    points, ones, mass = random_counts(n_components, 5, 40, n_components)
    start = flat_start(5, n_components)
    fit = logistic_m_step(points, ones, mass, *start, prior_precision=prior_precision)
    assert fit.converged.all()
    assert not fit.diverged.any()
    for i in range(5):
        weights, offset = by_scikit_learn(points, ones[i], mass[i], prior_precision)
        np.testing.assert_allclose(fit.weights[i], weights, atol=1e-7)
        assert fit.offsets[i] == pytest.approx(offset[0], abs=1e-7)


def test_equal_slopes_are_those_of_scikit_learn() -> None:
    """One regression on the common point and an indicator of each feature."""
    points, ones, mass = random_counts(0, 4, 30, 1)
    start = np.array([[0.0], [2.0], [-1.0], [0.5]]), np.zeros(4)
    fit = logistic_m_step(points, ones, mass, *start, equal_slopes=True)
    design = np.column_stack([np.tile(points, (4, 1)), np.repeat(np.eye(4), 30, axis=0)])
    coefficients, _ = by_scikit_learn(design, ones.ravel(), mass.ravel(), fit_intercept=False)
    assert fit.converged.all()
    np.testing.assert_allclose(fit.weights, np.full((4, 1), coefficients[0]), atol=1e-7)
    np.testing.assert_allclose(fit.offsets, coefficients[1:], atol=1e-7)


@pytest.mark.parametrize("equal_slopes", [False, True])
def test_the_gradient_is_0_where_it_settles(equal_slopes: bool) -> None:
    prior_precision = 2.0
    points, ones, mass = random_counts(1, 6, 25, 1)
    fit = logistic_m_step(
        *(points, ones, mass, *flat_start(6, 1)),
        prior_precision=prior_precision,
        equal_slopes=equal_slopes,
    )
    left = ones - mass * expit(fit.weights @ points.T + fit.offsets[:, None])
    slope_gradient = left @ points - prior_precision * fit.weights
    if equal_slopes:
        slope_gradient = slope_gradient.sum(axis=0)
    np.testing.assert_allclose(slope_gradient, 0, atol=1e-6)
    np.testing.assert_allclose(left.sum(axis=1), 0, atol=1e-6)


@pytest.mark.parametrize("start", [0.0, 8.0, -45.0])
def test_expected_counts_give_back_the_truth_from_any_start(start: float) -> None:
    rng = np.random.default_rng(2)
    nodes = gauss_hermite(9, 2)
    weights, offsets = 2 * rng.standard_normal((7, 2)), rng.standard_normal(7)
    mass = np.tile(1e6 * np.exp(nodes.log_weights), (7, 1))
    ones = mass * expit(weights @ nodes.points.T + offsets[:, None])
    at = np.full((7, 2), start / np.sqrt(2)), np.full(7, -start)
    fit = logistic_m_step(nodes.points, ones, mass, *at)
    assert fit.converged.all()
    np.testing.assert_allclose(fit.weights, weights, atol=1e-7)
    np.testing.assert_allclose(fit.offsets, offsets, atol=1e-7)


@pytest.mark.parametrize("equal_slopes", [False, True])
def test_no_round_lowers_the_objective(equal_slopes: bool) -> None:
    """Newton's own step does, from starts as bad as these."""
    points, ones, mass = random_counts(3, 8, 12, 1)
    start = np.full((8, 1), -30.0), np.linspace(-20, 20, 8)
    fits = [
        logistic_m_step(points, ones, mass, *start, equal_slopes=equal_slopes, max_rounds=rounds)
        for rounds in range(40)
    ]
    values = np.array([objective(points, ones, mass, fit.weights, fit.offsets) for fit in fits])
    if equal_slopes:
        assert all(np.ptp(fit.weights) == 0 for fit in fits)
        values = values.sum(axis=1, keepdims=True)
    assert np.all(np.diff(values, axis=0) >= -1e-12 * abs(values[1:]))
    assert np.all(values[-1] > values[0])
    assert fits[-1].converged.all()


def test_newtons_step_from_where_all_is_flat_does_not_go_astray() -> None:
    """It is 1e5 long here, to where f is flat as well, and the way back is as long."""
    points, mass = np.array([[0.75], [-0.6]]), np.array([[0.3, 0.0], [30.0, 20.0]])
    start = np.zeros((2, 1)), np.full(2, -12.6)
    fit = logistic_m_step(points, mass * [[1.0], [0.4]], mass, *start)
    assert fit.rounds < 60
    np.testing.assert_array_equal(fit.diverged, [True, False])
    np.testing.assert_allclose([fit.weights[1, 0], fit.offsets[1]], [0, logit(0.4)], atol=1e-7)


@given(seeds, st.integers(1, 3), st.integers(1, 9), st.sampled_from([0.01, 1.0, 20.0]))
def test_any_counts_give_numbers_and_no_loss(
    seed: int, n_components: int, n_points: int, scale: float
) -> None:
    """Few points, separated ones, empty points, ratios next to 0 and 1, masses of any size."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n_points, n_components))
    mass = rng.integers(0, 4, (4, n_points)) * 10.0 ** rng.integers(-3, 6, (4, 1))
    ones = mass * rng.choice([0, 1e-12, 0.3, 0.5, 1 - 1e-9, 1], mass.shape)
    weights = scale * rng.uniform(-1, 1, (4, n_components))
    offsets = scale * rng.uniform(-1, 1, 4)
    before = objective(points, ones, mass, weights, offsets)
    with np.errstate(all="raise", under="ignore"):
        fit = logistic_m_step(points, ones, mass, weights, offsets)
    after = objective(points, ones, mass, fit.weights, fit.offsets)
    # ε, which holds what runs away, may cost this much.
    slack = 1e-12 * (abs(before) + mass.sum(axis=1) * MAX_SLOPE**2)
    assert np.all(after >= before - slack)
    assert np.all(np.linalg.norm(fit.weights, axis=1) <= MAX_SLOPE * (1 + 1e-12))
    assert not np.any(fit.converged & fit.diverged)
    left = ones - mass * expit(fit.weights @ points.T + fit.offsets[:, None])
    gradient = np.column_stack([left @ points, left.sum(axis=1)])[fit.converged]
    assert np.all(abs(gradient) <= 1e-6 * mass.sum(axis=1)[fit.converged, None])


def separated(gap: float) -> tuple[Floats, Floats, Floats]:
    """A feature that is one behind 0.3, and one with overlap, on points with a gap there."""
    below, above = 0.3 - gap / 2 - np.arange(5.0), 0.3 + gap / 2 + np.arange(5.0)
    points = np.concatenate([below, above])[:, None]
    ones = np.array([[0.0] * 5 + [10.0] * 5, [2.0] * 5 + [7.0] * 5])
    return points, ones, np.full((2, 10), 10.0)


@pytest.mark.parametrize("gap", [0.05, 0.5, 4.0])
def test_a_separated_feature_is_flagged_and_kept_in_bounds(gap: float) -> None:
    points, ones, mass = separated(gap)
    fit = logistic_m_step(points, ones, mass, *flat_start(2, 1))
    np.testing.assert_array_equal(fit.diverged, [True, False])
    np.testing.assert_array_equal(fit.converged, [False, True])
    assert 0 < fit.weights[0, 0] <= MAX_SLOPE * (1 + 1e-12)
    assert -fit.offsets[0] / fit.weights[0, 0] == pytest.approx(0.3, abs=gap / 2)
    assert objective(points, ones, mass, fit.weights, fit.offsets)[0] > -30
    alone = logistic_m_step(points, ones[1:], mass[1:], *flat_start(1, 1))
    assert fit.weights[1, 0] == pytest.approx(alone.weights[0, 0], abs=1e-9)


def test_a_start_beyond_the_bounds_is_brought_back() -> None:
    points, ones, mass = separated(0.05)
    fit = logistic_m_step(points, ones, mass, np.full((2, 1), 5e3), np.full(2, -1.5e3))
    assert np.all(abs(fit.weights) <= MAX_SLOPE * (1 + 1e-12))
    np.testing.assert_array_equal(fit.converged, [False, True])


def test_a_separated_feature_stays_flagged_and_follows_the_data() -> None:
    """The next M-step of EM starts where the last was held back."""
    points, ones, mass = separated(0.05)
    fit = logistic_m_step(points, ones, mass, *flat_start(2, 1))
    assert fit.weights[0, 0] == pytest.approx(MAX_SLOPE)
    moved = logistic_m_step(points + 0.7, ones, mass, fit.weights, fit.offsets)
    np.testing.assert_array_equal(moved.diverged, [True, False])
    assert -moved.offsets[0] / moved.weights[0, 0] == pytest.approx(1.0, abs=0.025)
    overlapping = np.array([[1.0] * 5 + [8.0] * 5, ones[1]])
    back = logistic_m_step(points, overlapping, mass, fit.weights, fit.offsets)
    assert back.converged.all()
    assert back.weights[0, 0] < 5


def test_a_prior_shrinks_slopes_and_tames_separation() -> None:
    points, ones, mass = separated(0.5)
    fits = [
        logistic_m_step(points, ones, mass, *flat_start(2, 1), prior_precision=precision)
        for precision in (0.1, 1.0, 10.0, 1e6)
    ]
    assert all(fit.converged.all() for fit in fits)
    assert np.all(np.diff([abs(fit.weights[:, 0]) for fit in fits], axis=0) < 0)
    np.testing.assert_allclose(fits[-1].weights, 0, atol=1e-3)
    np.testing.assert_allclose(fits[-1].offsets, logit((ones / mass).mean(axis=1)), atol=1e-3)


def test_counts_that_determine_nothing_are_flagged() -> None:
    """A constant feature, one seen at a single point, one never seen."""
    points = np.array([[-1.0], [0.5], [1.0]])
    mass = np.array([[5.0, 5, 5], [0, 8, 0], [0, 0, 0]])
    ones = np.array([[5.0, 5, 5], [0, 2, 0], [0, 0, 0]])
    start = np.full((3, 1), 0.7), np.full(3, -0.2)
    fit = logistic_m_step(points, ones, mass, *start)
    assert fit.diverged.all()
    assert not fit.converged.any()
    p = expit(fit.weights @ points.T + fit.offsets[:, None])
    np.testing.assert_allclose(p[0], 1, atol=1e-9)
    assert p[1, 1] == pytest.approx(0.25, abs=1e-9)
    assert (fit.weights[2, 0], fit.offsets[2]) == (0.7, -0.2)
    held = logistic_m_step(points, ones, mass, *start, prior_precision=1.0)
    assert held.weights[2, 0] == pytest.approx(0, abs=1e-12)


def test_rounding_errors_of_sums_do_not_matter() -> None:
    """Ones may exceed the mass in the last digits."""
    points, ones, mass = separated(0.5)
    fit = logistic_m_step(points, ones * (1 + 1e-15), mass, *flat_start(2, 1))
    exact = logistic_m_step(points, ones, mass, *flat_start(2, 1))
    np.testing.assert_array_equal(fit.diverged, exact.diverged)
    np.testing.assert_allclose(fit.weights, exact.weights, rtol=1e-6)


def test_running_out_of_rounds_is_not_converged() -> None:
    counts = random_counts(4, 3, 20, 2)
    fit = logistic_m_step(*counts, *flat_start(3, 2), max_rounds=1)
    assert fit.rounds == 1
    assert not fit.converged.any()
    assert not fit.diverged.any()
    full = logistic_m_step(*counts, *flat_start(3, 2))
    again = logistic_m_step(*counts, full.weights, full.offsets)
    assert (again.rounds, again.converged.all()) == (1, True)


def test_equal_slopes_need_one_component() -> None:
    with pytest.raises(FitError, match="equal_slopes=True needs one component, but there are 2"):
        logistic_m_step(*random_counts(0, 2, 9, 2), *flat_start(2, 2), equal_slopes=True)


def em(X, nodes: Nodes, n_iterations: int, equal_slopes=False) -> tuple[LogisticFit, Floats]:
    """EM from slopes of 1, and the log-likelihood before each iteration."""
    weights = np.eye(X.shape[1], nodes.points.shape[1]) + 0.5
    offsets, history = logit(X.mean(axis=0)), []
    for _ in range(n_iterations):
        statistics = node_statistics(X, None, LevelItems.from_binary(weights, offsets), nodes)
        history.append(statistics.log_likelihood)
        fit = logistic_m_step(
            *(nodes.points, statistics.ones, statistics.mass, weights, offsets),
            equal_slopes=equal_slopes,
        )
        weights, offsets = fit.weights, fit.offsets
    return fit, np.array(history)


@pytest.mark.parametrize("n_per_axis", [21, 41])
@pytest.mark.parametrize(
    ("equal_slopes", "published"), [(False, -2466.65), (True, -2466.94)], ids=["free", "equal"]
)
def test_the_likelihood_of_lsat_6(n_per_axis: int, equal_slopes: bool, published: float) -> None:
    """Maxima of Bock & Aitkin's example, section 6 of the Law School Admission Test."""
    with np.load(find_shared_data("lsat6.npz")) as file:
        X = np.unpackbits(file["X"], axis=1)[:, : file["shape"][1]]
    fit, history = em(X, gauss_hermite(n_per_axis, 1), 250, equal_slopes)
    assert history[-1] == pytest.approx(published, abs=0.01)
    assert np.diff(history).min() > -1e-9
    assert fit.converged.all()
    assert (np.ptp(fit.weights) == 0) == equal_slopes


@pytest.mark.parametrize(
    "nodes",
    [gauss_hermite(9, 2), draw_nodes(100, 2, np.random.default_rng(0))],
    ids=["quadrature", "random"],
)
def test_em_climbs_even_where_slopes_run_away(nodes: Nodes) -> None:
    """Two features that are nearly equal want a slope without end."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((500, 2))
    X = (rng.random((500, 6)) < expit(x @ rng.standard_normal((2, 6)))).astype(np.uint8)
    X[:, 0] = X[:, 1] = x[:, 0] > 0.3
    X[:3, 1] ^= 1
    fit, history = em(X, nodes, 150)
    assert np.diff(history).min() > -1e-7
    assert fit.diverged.any()
    assert np.isfinite(fit.weights).all()
    assert np.isfinite(fit.offsets).all()
