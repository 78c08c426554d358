"""Scores and information against derivatives of the log-likelihood by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import expit, logsumexp

from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    gauss_hermite,
    iter_responsibilities,
    node_posterior,
    node_statistics,
)
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice
from pipeline.numerics.logistic.logistic_sites import sum_ep_score_products
from pipeline.numerics.logistic.trait_scores import (
    sum_node_scores,
    sum_trait_scores,
)

Floats = NDArray[np.float64]
STEP = 1e-4


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("q", "n_features", "masked"), [(1, 6, False), (1, 14, True), (2, 5, True)]
)
def test_they_are_the_derivatives(q: int, n_features: int, masked: bool) -> None:
    rng = np.random.default_rng([q, n_features])
    weights = rng.normal(1, 0.4, (n_features, q)) * rng.choice([-1, 1], (n_features, q))
    offsets = rng.normal(0, 0.7, n_features)
    X = (rng.random((40, n_features)) < expit(rng.normal(size=(40, q)) @ weights.T + offsets)) * 1
    X = X.astype(np.uint8)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8) if masked else None
    nodes = gauss_hermite(61, q)
    packed = np.column_stack([weights, offsets]).ravel()

    def log_likelihood(at: Floats) -> Floats:
        w = at.reshape(n_features, q + 1)
        return node_posterior(X, observed, w[:, :q], w[:, q], nodes).log_likelihood

    def moved(*places: tuple[int, float]) -> Floats:
        at = packed.copy()
        for place, step in places:
            at[place] += step
        return log_likelihood(at)

    size, h = len(packed), STEP
    scores = np.stack([(moved((i, h)) - moved((i, -h))) / (2 * h) for i in range(size)], axis=1)
    hessian = (
        np.array(
            [
                [
                    sum(
                        s * t * moved((i, s * 10 * h), (j, t * 10 * h)).sum()
                        for s in (1, -1)
                        for t in (1, -1)
                    )
                    for j in range(size)
                ]
                for i in range(size)
            ]
        )
        / (20 * h) ** 2
    )
    posterior = node_posterior(X, observed, weights, offsets, nodes)
    found = sum_trait_scores(X, observed, weights, offsets, posterior)
    np.testing.assert_allclose(found.products, scores.T @ scores, rtol=0, atol=0.01)
    mass = node_statistics(X, observed, weights, offsets, nodes).mass
    z = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    sigma = expit(weights @ nodes.points.T + offsets[:, None])
    curvature = np.einsum("il,la,lb->iab", mass * sigma * (1 - sigma), z, z)
    np.testing.assert_allclose(found.curvature, curvature, rtol=0, atol=0.01 * curvature.max())
    louis = block_diag(*curvature) - found.spread + found.products
    np.testing.assert_allclose(louis, -hessian, rtol=0, atol=0.01 * abs(hessian).max())
    if not masked:
        on_nodes = sum_node_scores(X, weights, offsets, nodes)
        np.testing.assert_allclose(on_nodes.products, scores.T @ scores, rtol=0, atol=1e-4)
        np.testing.assert_allclose(on_nodes.curvature, curvature, rtol=1e-10, atol=1e-10)
        louis = block_diag(*curvature) - on_nodes.spread + on_nodes.products
        np.testing.assert_allclose(louis, -hessian, rtol=0, atol=1e-3 * abs(hessian).max())


@pytest.mark.parametrize("q", [1, 2])
def test_rows_on_nodes_have_the_spread_of_their_responsibilities(q: int) -> None:
    rng = np.random.default_rng(q)
    weights, offsets = rng.normal(1, 0.4, (4, q)), rng.normal(0, 0.7, 4)
    X, nodes = (rng.random((50, 4)) < 0.5).astype(np.uint8), gauss_hermite(7, q)
    z = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    left = X[:, None] - expit(nodes.points @ weights.T + offsets)
    scores = np.einsum("nli,la->nlia", left, z).reshape(len(X), len(z), -1)
    (_, shares), *_ = iter_responsibilities(X, None, weights, offsets, nodes)
    found = sum_node_scores(X, weights, offsets, nodes)
    spread = np.einsum("nl,nlp,nlr->pr", shares, scores, scores)
    mean = np.einsum("nl,nlp->np", shares, scores)
    np.testing.assert_allclose(found.spread, spread, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.products, mean.T @ mean, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("q", [1, 2])
def test_scores_of_many_features_are_those_of_a_dense_grid(q: int) -> None:
    rng = np.random.default_rng(q)
    n_features = 120
    weights, offsets = rng.standard_normal((n_features, q)), rng.normal(0, 0.7, n_features)
    X = (rng.random((4, n_features)) < expit(rng.normal(size=(4, q)) @ weights.T + offsets)) * 1
    X = X.astype(np.uint8)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
    axis = np.arange(-4, 4, 0.08)
    points = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), axis=-1).reshape(-1, q)
    log_density = -0.5 * (points**2).sum(axis=1)
    nodes = Nodes(points, log_density - logsumexp(log_density))
    posterior = node_posterior(X, observed, weights, offsets, nodes)
    found = sum_trait_scores(X, observed, weights, offsets, posterior)
    z, sigma = np.column_stack([points, np.ones(len(points))]), expit(points @ weights.T + offsets)
    spread = np.zeros_like(found.spread)
    for row, mask in zip(X, observed, strict=True):
        eta = points @ weights.T + offsets
        log_shares = nodes.log_weights + (mask * (row * eta - np.logaddexp(0, eta))).sum(axis=1)
        shares = np.exp(log_shares - logsumexp(log_shares))
        scores = ((mask * (row - sigma))[:, :, None] * z[:, None]).reshape(len(z), -1)
        spread += (shares[:, None] * scores).T @ scores
    np.testing.assert_allclose(found.spread, spread, rtol=0, atol=2e-3 * abs(spread).max())
    deviation, expected = found.spread - found.products, spread - found.products
    np.testing.assert_allclose(deviation, expected, rtol=0, atol=1e-2 * abs(expected).max())


def test_a_posterior_with_all_mass_on_one_point_has_finite_scores() -> None:
    rng = np.random.default_rng(0)
    weights, offsets = rng.standard_normal((120, 2)), np.zeros(120)
    X = (rng.random((10, 120)) < 0.5).astype(np.uint8)
    posterior = posterior_on_lattice(X, None, TraitItems(weights, offsets))
    posterior.covariance[:] = 1e4 * np.eye(2)  # so that the other points are far away
    found = sum_trait_scores(X, None, weights, offsets, posterior)
    assert all(np.isfinite(values).all() for values in found)


def crossed(nodes: Nodes, times: int) -> Nodes:
    """Return the nodes of several pairs of components."""
    found = nodes
    for _ in range(times - 1):
        old, new = np.divmod(np.arange(len(found.points) * len(nodes.points)), len(nodes.points))
        points = np.hstack([found.points[old], nodes.points[new]])
        found = Nodes(points, found.log_weights[old] + nodes.log_weights[new])
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(("q", "n_features", "an_axis"), [(2, 8, 41), (4, 10, 13)])
def test_products_of_scores_are_those_of_the_derivatives(
    q: int, n_features: int, an_axis: int
) -> None:
    rng = np.random.default_rng(q)
    weights, offsets = rng.normal(0, 1, (n_features, q)), rng.normal(0, 0.7, n_features)
    X = (rng.random((30, n_features)) < expit(rng.normal(size=(30, q)) @ weights.T + offsets)) * 1
    X, nodes = X.astype(np.uint8), crossed(gauss_hermite(an_axis, 2), q // 2)
    observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
    packed = np.column_stack([weights, offsets])

    def log_likelihood(at: Floats) -> Floats:
        return node_posterior(X, observed, at[:, :q], at[:, q], nodes).log_likelihood

    scores = np.empty((len(X), *packed.shape))
    for place in np.ndindex(packed.shape):
        step = np.zeros(packed.shape)
        step[place] = STEP
        ends = log_likelihood(packed + step), log_likelihood(packed - step)
        scores[:, *place] = (ends[0] - ends[1]) / (2 * STEP)
    flat = scores.reshape(len(X), -1)
    found = sum_ep_score_products(X, observed, weights, offsets)
    expected = flat.T @ flat
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.02 * expected.max())
