"""Sums over the traits of a bifactor model, against sums over a full grid."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy

from pipeline.numerics.logistic.bifactor import (
    bifactor_e_step,
    bifactor_posterior,
    compute_bifactor_scores,
    find_trait_blocks,
)
from pipeline.numerics.logistic.newton_step import unpack_triangles

AXIS = np.linspace(-6.5, 6.5, 25)
GRID = np.array([*product(AXIS, repeat=3)])
LOG_PRIOR = -0.5 * (GRID**2).sum(axis=1) - scipy.special.logsumexp(-0.5 * (GRID**2).sum(axis=1))


@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize(
    "entries",
    [
        ["110"] * 3 + ["101"] * 3 + ["100"],
        ["100"] * 2 + ["010"] * 2 + ["001"] * 2,
        ["111"] * 3 + ["110"] * 3,
    ],
    ids=["bifactor", "no general trait", "two general traits"],
)
def test_sums_are_those_over_all_traits(entries: list[str], missing: float) -> None:
    rng = np.random.default_rng(0)
    loads = np.array([[entry == "1" for entry in item] for item in entries])
    n_items, n_rows = len(loads), 30
    weights, offsets = loads * rng.uniform(0.5, 1.7, loads.shape), rng.normal(size=n_items)
    X = rng.integers(0, 2, (n_rows, n_items)).astype(np.uint8)
    observed = (rng.random(X.shape) >= missing).astype(np.uint8) if missing else None
    mask = np.ones(X.shape) if observed is None else observed
    row_weights = rng.integers(0, 4, n_rows).astype(float)
    eta, z = GRID @ weights.T + offsets, np.column_stack([GRID, np.ones(len(GRID))])
    P = scipy.special.expit(eta)
    joint = (mask * X) @ eta.T - mask @ np.logaddexp(0, eta).T + LOG_PRIOR
    log_likelihood = scipy.special.logsumexp(joint, axis=1)
    shares = np.exp(joint - log_likelihood[:, None])
    mean = shares @ GRID
    second = np.einsum("nl,la,lb->nab", shares, GRID, GRID)
    size = n_items * 4
    scores, spread = np.empty((n_rows, size)), np.zeros((size, size))
    curvature = np.zeros((n_items, 4, 4))
    for n in range(n_rows):
        at_nodes = ((mask[n] * (X[n] - P))[:, :, None] * z[:, None]).reshape(-1, size)
        scores[n] = shares[n] @ at_nodes
        spread += row_weights[n] * (at_nodes * shares[n][:, None]).T @ at_nodes
        by_node = row_weights[n] * mask[n] * P * (1 - P) * shares[n][:, None]
        curvature += np.einsum("li,la,lb->iab", by_node, z, z)

    blocks = find_trait_blocks(loads)
    assert blocks is not None
    is_free = np.column_stack([loads, np.ones(n_items, bool)])
    sums = bifactor_e_step(X, observed, weights, offsets, row_weights, blocks=blocks)
    assert sums.log_likelihood == pytest.approx(row_weights @ log_likelihood, abs=1e-4)
    gradient = (row_weights @ scores).reshape(n_items, 4) * is_free
    np.testing.assert_allclose(sums.gradient, gradient, atol=1e-3)
    are_free = is_free[:, :, None] & is_free[:, None]
    found = unpack_triangles(sums.curvature, 4)
    np.testing.assert_allclose(found, curvature * are_free, atol=1e-3)
    variances = row_weights @ second.diagonal(axis1=1, axis2=2)
    np.testing.assert_allclose(sums.moments.diagonal(), [*variances, row_weights.sum()], atol=1e-3)
    np.testing.assert_allclose(sums.moments[-1, :3], row_weights @ mean, atol=1e-3)

    posterior = bifactor_posterior(X, observed, weights, offsets, blocks)
    np.testing.assert_allclose(posterior.log_likelihood, log_likelihood, atol=1e-5)
    np.testing.assert_allclose(posterior.mean, mean, atol=1e-4)
    covariance = second - mean[:, :, None] * mean[:, None]
    np.testing.assert_allclose(posterior.covariance, covariance, atol=1e-4)
    assert posterior.standard_error.max() < 1e-3

    parts = compute_bifactor_scores(X, observed, weights, offsets, row_weights, blocks)
    assert sorted(parts.parameters.tolist()) == np.flatnonzero(is_free).tolist()
    at = parts.parameters
    np.testing.assert_allclose(parts.scores, scores[:, at], atol=1e-4)
    np.testing.assert_allclose(parts.spread, spread[np.ix_(at, at)], atol=2e-3)


def test_general_traits_are_found() -> None:
    loads = np.zeros((9, 5), bool)
    loads[:, 3] = True
    loads[range(9), np.repeat([0, 1, 4], 3)] = True
    loads[8, 4] = False
    loads[:4, 2] = True
    blocks = find_trait_blocks(loads)
    assert blocks is not None
    assert blocks.general == (2, 3)
    assert blocks.specific == (0, 1, 4, -1)
    assert [items.tolist() for items in blocks.items] == [[0, 1, 2], [3, 4, 5], [6, 7], [8]]
    assert find_trait_blocks(np.ones((6, 4), bool)) is None
