"""Scores of items with several levels: on points of each row as on shared nodes."""

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
    SharedNodes,
    compute_level_node_posterior,
)

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
