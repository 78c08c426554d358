"""log P(x) of noisy-OR networks: enumeration, and annealing against it."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.models.noisy_or.gibbs import MISSING, make_network
from pipeline.models.noisy_or.gibbs import (
    enumerate_log_probabilities,
    estimate_log_probabilities,
)
from pipeline.random import RowRandom
from tests.support.enumerated_noisy_or import enumerated, random_network


@pytest.mark.parametrize("sizes", [(6, 1), (7, 4), (9, 4, 3), (5, 1, 3, 2)])
def test_enumeration_sums_the_formula(sizes: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(sizes))
    f, leaks = random_network(rng, sizes)
    X = rng.integers(0, 3, (20, sizes[0])).astype(np.uint8)
    X[0], X[1], X[2] = 0, 1, MISSING
    found = enumerate_log_probabilities(make_network(f, leaks), X)
    np.testing.assert_allclose(found, enumerated(f, leaks, X)[0], rtol=1e-12, atol=1e-12)


def test_annealing_is_as_far_off_as_it_says() -> None:
    rng = np.random.default_rng(5)
    network = make_network(*random_network(rng, (12, 5, 3)))
    X = rng.integers(0, 2, (60, 12)).astype(np.uint8)
    X[:10, 4] = MISSING
    exact = enumerate_log_probabilities(network, X)
    found, errors = estimate_log_probabilities(network, X, RowRandom(1).key, np.arange(60), 60, 100)
    z = (found - exact) / errors
    assert np.abs(z).max() < 4
    assert 0.7 < z.std() < 1.4
    assert errors.max() < 0.15


def test_annealing_agrees_with_enumeration_where_causes_are_sure() -> None:
    """Leaks of 1e-4 and f near 1: chains must find the one explanation of each row."""
    rng = np.random.default_rng(6)
    f, leaks = (
        (np.where(np.eye(6).repeat(4, axis=1) == 1, 0.99, 0.0),),
        (np.full(24, 1e-4), np.full(6, 0.3)),
    )
    X = np.repeat(rng.integers(0, 2, (20, 6)), 4, axis=1).astype(np.uint8)
    network = make_network(f, leaks)
    found, errors = estimate_log_probabilities(network, X, RowRandom(1).key, np.arange(20), 50, 200)
    assert (np.abs(found - enumerate_log_probabilities(network, X)) < 4 * errors + 1e-6).all()
