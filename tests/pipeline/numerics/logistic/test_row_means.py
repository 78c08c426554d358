"""Priors N(m_n, I) of rows, against sums over a fine grid."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.scores import RowRegression
from pipeline.numerics.logistic.centred_nodes import centred_e_step
from pipeline.numerics.logistic.centred_points import TraitItems, posterior_by_quadrature
from pipeline.numerics.logistic.latent_nodes import gauss_hermite, node_statistics
from pipeline.numerics.logistic.lattice_nodes import lattice_e_step
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice
from tests.pipeline.numerics.logistic.test_scores import sum_binary_scores

Floats = NDArray[np.float64]

N_ROWS, N_FEATURES, N_COVARIATES = 24, 8, 3
ROW_WEIGHTS = np.linspace(0.5, 2.0, N_ROWS)


def draw_rows(
    q: int, masked: bool, scale: float = 1.0, n_features: int = N_FEATURES
) -> tuple[Any, Any, Floats, Floats, RowRegression]:
    """Draw rows and their model; the means of the priors lie up to about 4 × scale from 0."""
    rng = np.random.default_rng([q, masked])
    weights, offsets = rng.normal(0.3, 1, (n_features, q)), rng.normal(0, 0.7, n_features)
    z = rng.normal(0, 1, (N_ROWS, N_COVARIATES))
    means = scale * z @ rng.normal(0, 0.7, (N_COVARIATES, q))
    x = means + rng.standard_normal((N_ROWS, q))
    X = (rng.random((N_ROWS, n_features)) < scipy.special.expit(x @ weights.T + offsets)) * 1
    observed = None
    if masked:
        observed = (rng.random(X.shape) < 0.7).astype(np.uint8)
        observed[::3] = 1
        X &= observed
    return X.astype(np.uint8), observed, weights, offsets, RowRegression(z, means)


class Expected(NamedTuple):
    """Per row: log-likelihood, mean and covariance of x, shares of grid points; and the grid."""

    nats: Floats
    mean: Floats
    covariance: Floats
    shares: Floats
    points: Floats


def integrate(X: Any, observed: Any, weights: Floats, offsets: Floats, means: Floats) -> Expected:
    q = weights.shape[1]
    axis = np.linspace(-14, 14, 701 if q == 1 else 181)
    points = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), -1).reshape(-1, q)
    eta = points @ weights.T + offsets
    mask = np.ones_like(X) if observed is None else observed
    joint = (X * mask) @ scipy.special.log_expit(eta).T
    joint += ((1 - X) * mask) @ scipy.special.log_expit(-eta).T
    distance = points - means[:, None]
    joint += scipy.stats.norm.logpdf(distance).sum(axis=2) + q * np.log(axis[1] - axis[0])
    nats = scipy.special.logsumexp(joint, axis=1)
    shares = np.exp(joint - nats[:, None])
    mean = shares @ points
    centred = points - mean[:, None]
    covariance = np.einsum("nl,nla,nlb->nab", shares, centred, centred)
    return Expected(nats, mean, covariance, shares, points)


def run_on_nodes(*arguments: Any, row_means: Floats) -> Any:
    rule = gauss_hermite(41, arguments[2].shape[1])
    X, observed, weights, offsets, row_weights = arguments
    items = LevelItems.from_binary(weights, offsets)
    return node_statistics(X, observed, items, rule, row_weights, row_means)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize(
    ("e_step", "tolerance"), [(lattice_e_step, 1e-4), (centred_e_step, 0.03), (run_on_nodes, 1e-4)]
)
def test_e_steps_agree_with_a_fine_grid(
    e_step: Any, tolerance: float, q: int, masked: bool
) -> None:
    if masked and e_step is lattice_e_step:
        tolerance = 0.03  # rows with missing values have centred nodes
    X, observed, weights, offsets, regression = draw_rows(q, masked)
    expected = integrate(X, observed, weights, offsets, regression.means)
    found = e_step(X, observed, weights, offsets, ROW_WEIGHTS, row_means=regression.means)
    assert found.log_likelihood == pytest.approx(ROW_WEIGHTS @ expected.nats, abs=tolerance)
    np.testing.assert_allclose(found.codes, expected.mean, atol=tolerance)
    if e_step is run_on_nodes:
        assert found.rows.sum() == pytest.approx(ROW_WEIGHTS.sum())
        return
    eta = expected.points @ weights.T + offsets
    mask = np.ones_like(X) if observed is None else observed
    z = np.column_stack([expected.points, np.ones(len(eta))])
    residual = mask[:, :, None] * (X[:, :, None] - scipy.special.expit(eta).T)
    gradient = np.einsum("n,nl,nil,la->ia", ROW_WEIGHTS, expected.shares, residual, z)
    np.testing.assert_allclose(found.gradient, gradient, atol=2 * tolerance)
    moments = np.einsum("n,nl,la,lb->ab", ROW_WEIGHTS, expected.shares, z, z)
    np.testing.assert_allclose(found.moments, moments, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("integrate_rows", [posterior_on_lattice, posterior_by_quadrature])
def test_posteriors_agree_with_a_fine_grid(integrate_rows: Any, q: int, masked: bool) -> None:
    X, observed, weights, offsets, regression = draw_rows(q, masked)
    expected = integrate(X, observed, weights, offsets, regression.means)
    found = integrate_rows(X, observed, TraitItems(weights, offsets), regression.means)
    np.testing.assert_allclose(found.log_likelihood, expected.nats, atol=1e-5)
    np.testing.assert_allclose(found.mean, expected.mean, atol=1e-4)
    np.testing.assert_allclose(found.covariance, expected.covariance, atol=1e-4)


def test_edges_are_found_near_the_means_of_the_priors() -> None:
    X, _, weights, offsets, regression = draw_rows(1, False)
    weights[0], offsets[0] = 60.0, -150.0
    X[:, 0] = regression.means[:, 0] > 2.5
    expected = integrate(X, None, weights, offsets, regression.means)
    found = posterior_on_lattice(X, None, TraitItems(weights, offsets), regression.means)
    np.testing.assert_allclose(found.log_likelihood, expected.nats, atol=1e-2)


@pytest.mark.parametrize("n_features", [N_FEATURES, 12, 120])
@pytest.mark.parametrize("q", [1, 2])
def test_scores_agree_with_a_fine_grid(q: int, n_features: int) -> None:
    X, observed, weights, offsets, regression = draw_rows(q, True, n_features=n_features)
    expected = integrate(X, observed, weights, offsets, regression.means)
    z = np.column_stack([expected.points, np.ones(len(expected.points))])
    eta = expected.points @ weights.T + offsets
    products, spread = np.zeros((2, n_features * (q + 1) + 3 * q, n_features * (q + 1) + 3 * q))
    for n, share in enumerate(expected.shares):
        used = share > 1e-12
        residual = observed[n] * (X[n] - scipy.special.expit(eta[used]))
        of_items = residual[:, :, None] * z[used, None]
        distance = expected.points[used] - regression.means[n]
        of_traits = regression.covariates[n][:, None] * distance[:, None]
        score = np.column_stack([part.reshape(used.sum(), -1) for part in (of_items, of_traits)])
        mean = share[used] @ score
        products += ROW_WEIGHTS[n] * np.outer(mean, mean)
        spread += ROW_WEIGHTS[n] * score.T @ (share[used, None] * score)
    items = LevelItems.from_binary(weights, offsets)
    found = sum_binary_scores(X, observed, items, expected, None, ROW_WEIGHTS, regression)
    for total, own in ((products, found.products), (spread, found.covariance + found.products)):
        scale = np.sqrt(np.diag(total))
        assert abs((own - total) / np.outer(scale, scale)).max() < 0.01


def test_rows_far_from_the_others_are_reached() -> None:
    X, _, weights, offsets, regression = draw_rows(1, False, scale=0.0)
    means = regression.means.copy()
    means[3] = 30.0
    codes = lattice_e_step(X, None, weights, offsets, row_means=means).codes
    distance = np.linspace(15, 45, 30_001)
    eta = distance[:, None] * weights[:, 0] + offsets
    log_joint = scipy.special.log_expit(np.where(X[3], eta, -eta)).sum(axis=1)
    share = scipy.special.softmax(log_joint - 0.5 * (distance - 30) ** 2)
    assert codes[3, 0] == pytest.approx(share @ distance, abs=1e-4)
