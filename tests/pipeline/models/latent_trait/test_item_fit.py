"""Expected shares by sum score against sums over all patterns."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.special import expit

from pipeline.models.latent_trait.fit_statistics import (
    item_fit_statistics,
    item_probabilities_by_score,
)
from pipeline.numerics.logistic.latent_nodes import gauss_hermite


@pytest.mark.parametrize(("n", "q"), [(3, 1), (6, 1), (5, 2)])
def test_shares_are_those_of_all_patterns(n: int, q: int) -> None:
    rng = np.random.default_rng([n, q])
    weights, offsets, nodes = rng.normal(size=(n, q)), rng.normal(size=n), gauss_hermite(9, q)
    patterns = np.array([*product([0, 1], repeat=n)])
    P = expit(nodes.points @ weights.T + offsets)
    chance = np.prod(np.where(patterns[:, None] == 1, P, 1 - P), axis=2) @ np.exp(nodes.log_weights)
    score = patterns.sum(axis=1)
    expected = [
        (chance[score == k] @ patterns[score == k]) / chance[score == k].sum() for k in range(n + 1)
    ]
    np.testing.assert_allclose(
        item_probabilities_by_score(weights, offsets, nodes), expected, atol=1e-12
    )


def test_many_even_items_stay_precise() -> None:
    """Items of P = 1/2 bring the characteristic function next to 0."""
    nodes = gauss_hermite(5, 1)
    found = item_probabilities_by_score(np.zeros((301, 1)), np.zeros(301), nodes)
    np.testing.assert_allclose(
        found[130:170], (np.arange(130, 170) / 301)[:, None] + np.zeros(301), atol=1e-9
    )


def test_what_fits_has_no_misfit() -> None:
    weights, offsets, nodes = np.ones((6, 1)), np.linspace(-1, 1, 6), gauss_hermite(21, 1)
    rows = np.full(7, 10_000)
    ones = np.rint(rows[:, None] * item_probabilities_by_score(weights, offsets, nodes)).astype(
        np.int64
    )
    found = item_fit_statistics(rows, ones, weights, offsets, nodes)
    assert (found.df == 3).all()
    assert (found.s_x2 < 1e-3).all()


def test_cells_with_too_few_rows_are_put_together() -> None:
    weights, offsets, nodes = np.ones((4, 1)), np.zeros(4), gauss_hermite(21, 1)
    rows, ones = np.array([0, 3, 2, 3, 0]), np.zeros((5, 4), np.int64)
    assert (item_fit_statistics(rows, ones, weights, offsets, nodes).df == 0).all()
