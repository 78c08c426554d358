"""Scores of items with several levels: against shared nodes and a numerical Hessian."""

from __future__ import annotations

import numpy as np
import pytest
import scipy

from pipeline.numerics.logistic.categories import scores
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    compute_level_probabilities,
    make_level_nodes,
)
from pipeline.numerics.logistic.categories.row_posteriors import (
    LevelPosterior,
    SharedNodes,
    compute_level_node_posterior,
)
from pipeline.numerics.logistic.trait_scores import RowRegression
from tests.pipeline.models.latent_trait.test_ordinal_patterns import compute_hessian

N_ROWS, N_ITEMS = 400, 31  # 155 levels


@pytest.mark.parametrize(("q", "is_cumulative"), [(1, True), (1, False), (2, True)])
def test_points_of_rows_give_the_covariances_of_shared_nodes(
    monkeypatch: pytest.MonkeyPatch, q: int, is_cumulative: bool
) -> None:
    rng = np.random.default_rng([q, is_cumulative])
    n_items, m = (N_ITEMS, 4) if q == 1 else (12, 2)
    weights = np.repeat(rng.uniform(0.4, 1.5, (n_items, q)), m, axis=0)
    if not is_cumulative:
        weights *= np.tile(np.arange(1.0, m + 1), n_items)[:, None]
    offsets = np.sort(rng.normal(0, 1.5, (n_items, m)))[:, ::-1].reshape(-1)
    items = LevelItems(weights, offsets, np.full(n_items, m), is_cumulative)
    P = compute_level_probabilities(items, rng.standard_normal((N_ROWS, q)))
    cumulative = P.reshape(N_ROWS, n_items, m + 1).cumsum(axis=2)[:, :, :-1]
    X = (cumulative < rng.random((N_ROWS, n_items, 1))).reshape(N_ROWS, -1).astype(np.uint8)
    observed = np.repeat(rng.random((N_ROWS, n_items)) < 0.9, m, axis=1).astype(np.uint8)
    jacobian = scipy.sparse.csr_array(np.eye(len(offsets) * (q + 1)))
    row_weights = rng.uniform(0.5, 2, N_ROWS)
    covariances, shared = [], SharedNodes.from_lattice(*make_level_nodes(items))
    posterior = compute_level_node_posterior(X, observed, items, shared)
    for limit in (0, 1000):
        monkeypatch.setattr(scores, "_MAX_NODE_LEVELS", limit)
        sums = scores.sum_level_scores(
            X, observed, items, shared.nodes, posterior, jacobian, row_weights
        )
        weighted = sums.spread - sums.products
        covariances.append(weighted)
    on_points, on_nodes = covariances
    assert not np.array_equal(on_points, on_nodes)
    np.testing.assert_allclose(on_points, on_nodes, atol=2e-3 * np.abs(on_nodes).max())


def test_few_items_with_covariates_have_the_errors_of_a_numerical_hessian() -> None:
    rng, n_items, m, n = np.random.default_rng(0), 3, 2, 500
    slopes, offsets = np.array([0.8, 1.5, 2.5]), np.tile([1.0, -1.0], n_items)
    covariates, theta = rng.standard_normal((n, 1)), np.array([[0.7]])
    # Items have one slope and two offsets each, and Θ comes last.
    jacobian = np.zeros((2 * m * n_items + 1, 3 * n_items + 1))
    jacobian[range(0, 2 * m * n_items, 2), np.repeat(np.arange(n_items), m)] = 1.0
    jacobian[range(1, 2 * m * n_items, 2), n_items + np.arange(m * n_items)] = 1.0
    jacobian[-1, -1] = 1.0
    at = np.concatenate([slopes, offsets, theta[0]])

    def make_items(free: np.ndarray) -> LevelItems:
        forms = (jacobian @ free)[:-1].reshape(-1, 2)
        return LevelItems(forms[:, :1], forms[:, 1], np.full(n_items, m), True)

    x = covariates @ theta + rng.standard_normal((n, 1))
    P = compute_level_probabilities(make_items(at), x).reshape(n, n_items, m + 1)
    X = P.cumsum(axis=2)[:, :, :-1] < rng.random((n, n_items, 1))
    X = X.reshape(n, -1).astype(np.uint8)
    shared = SharedNodes.from_lattice(*make_level_nodes(make_items(at), 0.5, 4.0))

    def integrate(free: np.ndarray) -> LevelPosterior:
        means = covariates * free[-1]
        return compute_level_node_posterior(X, None, make_items(free), shared, means)

    regression = RowRegression(covariates, covariates @ theta)
    sums = scores.sum_level_scores(
        X,
        None,
        make_items(at),
        shared.nodes,
        integrate(at),
        scipy.sparse.csr_array(jacobian),
        regression=regression,
    )
    information = sums.curvature - sums.spread + sums.products
    hessian = compute_hessian(lambda free: float(integrate(free).log_likelihood.sum()), at)
    found, expected = (np.sqrt(np.diag(np.linalg.inv(H))) for H in (information, -hessian))
    np.testing.assert_allclose(found, expected, rtol=3e-3)
