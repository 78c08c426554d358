"""Outliers of measurements and covariates: agreement with factor analysis and quadrature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from sklearn.decomposition import FactorAnalysis

import latentbits as lb
from latentbits.fitted import Fitted

Array = NDArray[np.float64]


def factor_log_likelihood(values: Array, Y: Array) -> float:
    """Return the log-likelihood of a model with one factor; values may be missing."""
    w, mean, log_deviation = np.split(values, 3)
    precision = ~np.isnan(Y) * np.exp(-2 * log_deviation)
    residuals = np.where(np.isnan(Y), 0.0, Y - mean)
    information = 1 + precision @ w**2
    code = (precision * residuals) @ w / information
    left = residuals - np.where(np.isnan(Y), 0.0, code[:, None] * w)
    nats = -0.5 * (precision * left**2).sum() - 0.5 * (code**2 + np.log(information)).sum()
    return float(nats - (~np.isnan(Y) * (log_deviation + 0.5 * np.log(2 * np.pi))).sum())


@pytest.mark.parametrize("outlier", [10.0, 99.0, 999.0])
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_row_of_outliers_is_fitted_as_by_factor_analysis(outlier: float, share: float) -> None:
    rng = np.random.default_rng(1)
    Y = rng.standard_normal((800, 1)) * rng.uniform(0.7, 1.2, 5) + rng.normal(0, 0.5, (800, 5))
    Y[rng.random(Y.shape) < share] = np.nan
    Y[0] = outlier
    names = list("abcde")
    fitted = lb.fit(lb.from_numpy(Y, names, continuous=names), "latent-trait", components=1)
    params = fitted.params
    values = np.concatenate(
        [
            params.scales * params.weights[:, 0],
            params.means + params.scales * params.offsets,
            np.log(params.scales * params.deviations),
        ]
    )
    reached = factor_log_likelihood(values, Y)
    assert fitted.objective is not None
    assert fitted.objective * len(Y) == pytest.approx(reached, abs=1e-4)
    best = minimize(lambda v: -factor_log_likelihood(v, Y), values, method="BFGS")
    assert reached == pytest.approx(-best.fun, abs=1e-3)
    np.testing.assert_allclose(values[:5], best.x[:5], rtol=1e-3)
    codes = lb.transform(fitted, lb.from_numpy(Y[:2], names, continuous=names))
    assert codes["mean"][0, 0] > 8
    assert (codes["variance"] > 0).all()


@pytest.mark.parametrize("outlier", [0.0, 10.0, 99.0, 999.0])
def test_two_traits_are_those_of_factor_analysis(outlier: float) -> None:
    rng = np.random.default_rng(0)
    loadings = rng.uniform(0.4, 0.8, (8, 2))
    X = rng.standard_normal((800, 2)) @ loadings.T + 0.6 * rng.standard_normal((800, 8))
    X[0] += outlier * (1 + 0.1 * rng.standard_normal(8))
    names = [f"m{k}" for k in range(8)]
    data = lb.from_dataframe(pd.DataFrame(X, columns=names), continuous=names)
    fitted = lb.fit(data, "latent-trait", components=2)
    Y = (X - X.mean(axis=0)) / X.std(axis=0)
    best = FactorAnalysis(2, tol=1e-10, max_iter=10_000).fit(Y)
    found = FactorAnalysis(2).fit(Y)
    found.components_ = fitted.params.weights.T
    found.noise_variance_ = fitted.params.deviations**2
    assert fitted.converged
    assert 800 * (found.score(Y) - best.score(Y)) == pytest.approx(0.0, abs=1e-3)


def test_two_traits_are_fitted_next_to_a_row_of_huge_outliers() -> None:
    rng = np.random.default_rng(1)
    Y = rng.standard_normal((800, 2)) @ rng.uniform(-1.2, 1.2, (2, 8))
    Y += rng.normal(0, 0.5, Y.shape)
    Y[0] = 999.0
    names = list("abcdefgh")
    data = lb.from_numpy(Y, names, continuous=names)
    one, two = (
        lb.fit(data, "latent-trait", components=q, errors="none", max_iter=50) for q in (1, 2)
    )
    assert one.objective is not None
    assert two.objective is not None
    assert two.objective > one.objective + 0.1


def test_an_outlier_next_to_binary_items_is_on_points_of_its_own() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(400)
    bits = (expit(1.5 * x[:, None] + rng.normal(0, 1, 4)) > rng.random((400, 4))).astype(float)
    Y = x[:, None] + rng.normal(0, 0.5, (400, 3))
    Y[0], bits[0] = 20.0, [1, 0, 1, 1]
    names = [*"pqrs", *"abc"]
    data = lb.from_numpy(np.hstack([bits, Y]), names, continuous=names[4:])
    fitted = lb.fit(data, "latent-trait", components=1)
    params = fitted.params
    z, v = np.polynomial.hermite_e.hermegauss(101)
    w, deviation = params.weights[4:, 0] * params.scales, params.deviations * params.scales
    precision = 1 + (w**2 / deviation**2).sum()
    residuals = Y - params.means - params.scales * params.offsets[4:]
    code = (residuals * w / deviation**2).sum(axis=1) / precision
    points = code[:, None] + z / np.sqrt(precision)
    eta = points[:, :, None] * params.weights[:4, 0] + params.offsets[:4]
    nats = logsumexp(
        (bits[:, None] * eta - np.logaddexp(0, eta)).sum(axis=2) + np.log(v / v.sum()), axis=1
    )
    left = (residuals - code[:, None] * w) / deviation
    nats -= 0.5 * (left**2).sum(axis=1) + 0.5 * (code**2 + np.log(precision))
    nats -= np.log(deviation * np.sqrt(2 * np.pi)).sum()
    assert fitted.objective is not None
    assert fitted.objective * 400 == pytest.approx(nats.sum(), abs=1e-3)
    assert lb.transform(fitted, data)["mean"][0, 0] > 10


def test_a_scorer_integrates_wherever_the_posterior_is() -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal(400)
    slopes = np.full(4, 1.5)
    bits = (expit(x[:, None] * slopes + rng.normal(0, 1, 4)) > rng.random((400, 4))).astype(float)
    Y = x[:, None] + rng.normal(0, 0.5, (400, 3))
    names = [*"pqrs", *"abc"]
    data = lb.from_numpy(np.hstack([bits, Y]), names, continuous=names[4:])
    fitted = lb.fit(data, "latent-trait", components=1, errors="none")
    score, params = lb.Scorer(fitted), fitted.params
    w, deviation = params.weights[4:, 0] * params.scales, params.deviations * params.scales
    precision = 1 + (w**2 / deviation**2).sum()
    for value in (20.0, -999.0, 1e6):
        residuals = value - params.means - params.scales * params.offsets[4:]
        code = (residuals * w / deviation**2).sum() / precision
        points = code + np.linspace(-40, 40, 80001) / np.sqrt(precision)
        eta = points[:, None] * params.weights[:4, 0] + params.offsets[:4]
        log_posterior = -0.5 * precision * (points - code) ** 2
        log_posterior += (np.array([1, 0, 1, 1]) * eta - np.logaddexp(0, eta)).sum(axis=1)
        share = np.exp(log_posterior - logsumexp(log_posterior))
        mean = share @ points
        scored = score(dict(zip(names, [1, 0, 1, 1, *[value] * 3], strict=True)))
        assert scored["mean_1"] == pytest.approx(mean, rel=1e-9)
        assert scored["variance_1"] == pytest.approx(share @ (points - mean) ** 2, rel=1e-4)


@pytest.mark.parametrize("q", [1, 2])
def test_known_offsets_far_from_all_answers_are_integrated(q: int) -> None:
    rng = np.random.default_rng(q)
    X = (rng.standard_normal((300, q)) @ np.full((q, 5), 2.0) > rng.logistic(0, 1, (300, 5))) * 1.0
    fitted = lb.fit(X, "latent-trait", components=q, errors="none", max_iter=5)
    offsets, slopes = np.array([30.0, -30, 30, -30, 0]), np.array([1.5, 2, 3, 5, 1])
    direction = np.array([0.6, 0.8][:q]) / (1 if q == 2 else 0.6)
    params = fitted.params.with_items(weights=slopes[:, None] * direction, offsets=offsets)
    rows = np.array([np.ones(5), np.zeros(5), [0, 1, 0, 1, 1], [0, 1, 0, np.nan, 0]])
    codes = lb.transform(replace(fitted, params=params), lb.from_numpy(rows, fitted.feature_names))
    points = np.linspace(-40, 40, 400001)
    for row, code in zip(rows, codes["mean"], strict=True):
        log_posterior = -0.5 * points**2
        for x, slope, offset in zip(row, slopes, offsets, strict=True):
            eta = slope * points + offset
            log_posterior += 0.0 if np.isnan(x) else x * eta - np.logaddexp(0, eta)
        mean = np.exp(log_posterior - logsumexp(log_posterior)) @ points
        np.testing.assert_allclose(code, mean * direction, atol=1e-3)


@pytest.mark.parametrize(("value", "share"), [(1e3, 0.0), (1e3, 0.1), (99999999.0, 0.0)])
def test_a_huge_covariate_leaves_its_coefficient_alone(value: float, share: float) -> None:
    rng = np.random.default_rng(3)
    n = 600
    z = rng.standard_normal(n)
    z[0] = value
    x = 1.5 * z + rng.standard_normal(n)
    X = (x[:, None] * rng.uniform(0.8, 2, 6) + rng.logistic(0, 1, (n, 6)) > 0).astype(float)
    X[rng.random(X.shape) < share] = np.nan
    table = pd.DataFrame(X, columns=list("abcdef")).assign(z=z)
    data = lb.from_dataframe(table, keep=["z"])
    fitted = lb.fit(data, "latent-trait", components=1, covariates=["z"])
    others = lb.from_dataframe(table[1:], keep=["z"])
    expected = lb.fit(others, "latent-trait", components=1, covariates=["z"])
    # The row is certain given its covariate, so it tells nothing.
    np.testing.assert_allclose(fitted.params.coefficients, expected.params.coefficients, rtol=1e-3)
    np.testing.assert_allclose(
        fitted.params.coefficients_error, expected.params.coefficients_error, rtol=1e-2
    )
    assert any("row 1 (z is" in warning for warning in fitted.warnings)
    assert not expected.warnings


@pytest.mark.parametrize("n_levels", [2, 3])
@pytest.mark.parametrize("value", [30.0, 300.0, 1e3, 1e8])
def test_a_covariate_that_contradicts_the_answers_is_named(value: float, n_levels: int) -> None:
    rng = np.random.default_rng(5)
    n = 600
    z = rng.standard_normal(n)
    eta = (1.5 * z + rng.standard_normal(n))[:, None] * rng.uniform(0.8, 2, 6)
    noise = rng.logistic(0, 1, (n, 6))
    steps = np.arange(n_levels - 1)[:, None, None]
    X = (eta + steps + noise > 0).sum(axis=0).astype(float)
    X[0], z[0] = 0.0, value
    names = list("abcdef")
    levels = None if n_levels == 2 else {name: [0.0, 1.0, 2.0] for name in names}
    data = lb.from_dataframe(pd.DataFrame(X, columns=names).assign(z=z), levels=levels, keep=["z"])
    fitted = lb.fit(data, "latent-trait", components=1, covariates=["z"], errors="none")
    plain = lb.fit(data, "latent-trait", components=1, errors="none")
    assert fitted.objective is not None
    assert plain.objective is not None
    assert n * (fitted.objective - plain.objective) > -0.01
    assert any("row 1 (z is" in warning for warning in fitted.warnings)


def draw_steps(n: int, share: float, rng: np.random.Generator) -> Array:
    """Draw answers of which the first is a step of the trait, with a share of missing values."""
    x = rng.standard_normal(n)
    eta = x[:, None] * rng.uniform(2, 4, 8) + rng.normal(0, 1, 8)
    X = (eta + rng.logistic(0, 1, eta.shape) > 0).astype(float)
    X[:, 0] = x > 0
    return np.where(rng.random(X.shape) < share, np.nan, X)


def sum_exactly(fitted: Fitted, X: Array) -> float:
    """Return the log-likelihood of a fit with one trait by a sum over a fine grid, nats."""
    points = np.arange(-8, 8, 0.005)
    log_weights = -0.5 * points**2
    eta = points[:, None] * fitted.params.weights[:, 0] + fitted.params.offsets
    log_joint = np.where(np.isnan(X), 0.0, X) @ eta.T - ~np.isnan(X) @ np.logaddexp(0, eta).T
    return float(logsumexp(log_joint + log_weights - logsumexp(log_weights), axis=1).sum())


def test_nodes_suffice_if_a_slope_diverges_and_values_are_missing() -> None:
    X = draw_steps(400, 0.1, np.random.default_rng(1))
    fitted = lb.fit(X, "latent-trait", components=1, errors="none")
    assert any("diverge" in warning for warning in fitted.warnings)
    assert fitted.objective is not None
    assert fitted.objective * len(X) == pytest.approx(sum_exactly(fitted, X), abs=1e-3)


def test_a_fit_says_that_no_nodes_resolve_slopes_that_diverge() -> None:
    X = draw_steps(400, 0.0, np.random.default_rng(1))
    fitted = lb.fit(X, "latent-trait", components=1, errors="none")
    assert any("may be off by some tenths of a nat" in warning for warning in fitted.warnings)


@pytest.mark.parametrize(("q", "slope", "share"), [(1, 4.0, 0.2), (2, 2.0, 0.05)])
def test_nodes_suffice_if_values_are_missing(q: int, slope: float, share: float) -> None:
    rng = np.random.default_rng(q)
    W = slope * rng.uniform(0.5, 1, (10, q)) * np.sign(rng.standard_normal((10, q)))
    eta = rng.standard_normal((500, q)) @ W.T + rng.normal(0, 1, 10)
    X = (expit(eta) > rng.random(eta.shape)).astype(float)
    X[rng.random(X.shape) < share] = np.nan
    fitted = lb.fit(X, "latent-trait", components=q, errors="none")
    axis = np.arange(-8, 8, {1: 0.05, 2: 0.2}[q])
    points = np.stack(np.meshgrid(*[axis] * q), axis=-1).reshape(-1, q)
    log_weights = -0.5 * (points**2).sum(axis=1)
    eta = points @ fitted.params.weights.T + fitted.params.offsets
    log_joint = np.where(np.isnan(X), 0.0, X) @ eta.T - ~np.isnan(X) @ np.logaddexp(0, eta).T
    nats = logsumexp(log_joint + log_weights - logsumexp(log_weights), axis=1)
    assert fitted.objective is not None
    assert fitted.objective * len(X) == pytest.approx(nats.sum(), abs=1e-3)


@pytest.mark.matrix
def test_nodes_suffice_for_many_rows_without_missing_values() -> None:
    rng = np.random.default_rng(1)
    eta = rng.standard_normal((20_000, 1)) * rng.uniform(0.8, 3, 8) + rng.normal(0, 1, 8)
    X = (expit(eta) > rng.random(eta.shape)).astype(float)
    fitted = lb.fit(X, "latent-trait", components=1, errors="none")
    assert fitted.objective is not None
    assert fitted.objective * len(X) == pytest.approx(sum_exactly(fitted, X), abs=1e-3)


@pytest.mark.parametrize("n_levels", [2, 3])
def test_set_nodes_suffice_for_rows_with_covariates(n_levels: int) -> None:
    rng = np.random.default_rng(2)
    group, z = rng.integers(0, 3, 1500), rng.standard_normal(1500)
    x = rng.standard_normal(1500) * np.array([1, 1.4, 0.7])[group] + group + 0.5 * z
    eta = x[:, None] * rng.uniform(0.8, 2.5, 8) + rng.normal(0, 1, 8) + rng.logistic(size=(1500, 8))
    X = (eta[:, :, None] > np.arange(n_levels - 1)).sum(axis=2)
    levels = None if n_levels == 2 else [str(level) for level in range(n_levels)]
    data = lb.from_numpy(X, levels=levels, keep={"group": group.astype(str), "z": z})
    found = [
        lb.fit(
            data,
            "latent-trait",
            components=1,
            group="group",
            covariates=["z"],
            errors="none",
            nodes=nodes,
        ).objective
        for nodes in (None, 100)
    ]
    assert None not in found
    assert 1500 * np.ptp(np.array(found)) < 1e-3


def test_two_equal_items_have_the_likelihood_of_steps() -> None:
    """Their slopes diverge; the fit must not stop where longer ones would gain several nats."""
    rng = np.random.default_rng(11)
    eta = rng.standard_normal((800, 1)) * rng.uniform(0.7, 1.8, 6) + 0.8 * rng.normal(size=6)
    X = (eta > rng.logistic(size=eta.shape)).astype(np.uint8)
    X[:, 5] = X[:, 0]
    fitted = lb.fit(X, "latent-trait", components=1)
    weights, offsets = fitted.params.weights[:, 0].copy(), fitted.params.offsets.copy()
    is_step = np.isin(np.arange(6), [0, 5])
    weights[is_step], offsets[is_step] = 20 * weights[is_step], 20 * offsets[is_step]
    grid = np.linspace(-9, 9, 20_001)
    log_p = -np.logaddexp(0, -np.outer(grid, weights) - offsets)
    log_q = -np.logaddexp(0, np.outer(grid, weights) + offsets)
    answers, rows = np.unique(X, axis=0, return_counts=True)
    log_joint = answers @ log_p.T + (1 - answers) @ log_q.T - grid**2 / 2
    nats = logsumexp(log_joint, axis=1) + np.log(9e-4 / np.sqrt(2 * np.pi))
    assert len(X) * fitted.history[-1] > rows @ nats - 2


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("structure", "least"),
    [({"group": "g"}, -4.12565), ({"covariates": ["z"]}, -4.09237)],
    ids=["groups", "covariate"],
)
def test_two_traits_with_missing_answers_and_an_outlier_do_not_run_away(
    structure: dict[str, Any], least: float
) -> None:
    rng = np.random.default_rng(1)
    z, group = rng.standard_normal(500), np.where(np.arange(500) % 2, "None", "N/A")
    trait = 0.4 * z + rng.standard_normal(500) + 0.3 * (group == "None")
    z[5] = 300
    chances = expit(trait[:, None] * 1.3 + np.linspace(-1, 1, 9))
    X = (rng.random((500, 9)) < chances).astype(float)
    X[:, 4] = 1 - X[:, 4]
    X[rng.random(X.shape) < 0.2] = np.nan
    X[:3] = np.nan
    frame = pd.DataFrame(X, columns=[f"q{k}" for k in range(9)]).assign(z=z, g=group)
    dataset = lb.from_dataframe(frame, keep=["z", "g"])
    fitted = lb.fit(dataset, "latent-trait", components=2, errors="none", **structure)
    assert fitted.history[-1] > least
