"""Sums of scores of items with asymptotes, against loops over rows and nodes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from pipeline.numerics.logistic.asymptote_scores import (
    AsymptoteItems,
    sum_asymptote_cluster_scores,
    sum_asymptote_scores,
)
from pipeline.numerics.logistic.asymptotes import Asymptotes
from pipeline.numerics.logistic.centred_points import TraitItems
from pipeline.numerics.logistic.lattice_nodes import make_even_nodes

ITEMS = TraitItems(np.array([[1.2], [-0.8], [2.0]]), np.array([0.3, -1.0, 0.5]))
ASYMPTOTES = Asymptotes(np.array([0.2, 0.1, 0.15]), np.array([0.05, 0.3, 0.1]))


@pytest.mark.parametrize("is_masked", [False, True])
def test_sums_are_those_of_loops(is_masked: bool) -> None:
    rng, nodes = np.random.default_rng(0), make_even_nodes(11)
    X = rng.integers(0, 2, (7, 3)).astype(np.uint8)
    observed = (rng.random((7, 3)) < 0.7).astype(np.uint8) if is_masked else None
    mask = np.ones_like(X) if observed is None else observed
    row_weights, clusters = rng.integers(1, 4, 7).astype(float), np.array([0, 0, 1, 1, 2, 2, 2])
    model = AsymptoteItems(ITEMS, ASYMPTOTES, nodes)
    sums = sum_asymptote_scores(X, observed, model, row_weights)
    by_cluster = sum_asymptote_cluster_scores(X, observed, model, row_weights, clusters)

    x, prior, h = nodes.points[:, 0], np.exp(nodes.log_weights), 1e-5
    at = np.column_stack([*ITEMS, *(np.log(p / (1 - p)) for p in ASYMPTOTES)])

    def compute_log_joint(free: np.ndarray, row: int) -> np.ndarray:
        g, s = expit(free[:, 2]), expit(free[:, 3])
        P = g + (1 - s - g) * expit(np.outer(x, free[:, 0]) + free[:, 1])
        answers = np.log(np.where(X[row] == 1, P, 1 - P)) * mask[row]
        return np.asarray(answers.sum(axis=1))

    spread, products, clustered = np.zeros((12, 12)), np.zeros((12, 12)), np.zeros((3, 12))
    for row in range(7):
        scores = np.empty((11, 12))
        for k in range(12):
            step = np.zeros(12)
            step[k] = h
            ends = [compute_log_joint(at + sign * step.reshape(3, 4), row) for sign in (1, -1)]
            scores[:, k] = (ends[0] - ends[1]) / (2 * h)
        share = prior * np.exp(compute_log_joint(at, row))
        share /= share.sum()
        mean = share @ scores
        spread += row_weights[row] * (scores.T * share) @ scores
        products += row_weights[row] * np.outer(mean, mean)
        clustered[clusters[row]] += row_weights[row] * mean
    np.testing.assert_allclose(sums.spread, spread, atol=1e-7)
    np.testing.assert_allclose(sums.products, products, atol=1e-7)
    np.testing.assert_allclose(by_cluster, clustered, atol=1e-7)
