"""Contrastive divergence of a layer, on the average over its draws, against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from pipeline.numerics.logistic.logistic_units import row_states
from pipeline.numerics.networks.gradient_steps import fill_contrastive_gradient
from pipeline.numerics.networks.layered_network import count_parameters, split_into_layers
from pipeline.random import RowRandom


@pytest.mark.parametrize("is_masked", [False, True])
def test_slopes_are_those_of_enumeration_on_the_average(is_masked: bool) -> None:
    rng, n_draws = np.random.default_rng(0), 2000
    given = rng.random((3, 4)).astype(np.float32)
    seen = (rng.random((3, 4)) < 0.7).astype(np.float32) if is_masked else None
    mask = np.ones((3, 4)) if seen is None else seen
    given *= mask.astype(np.float32)
    (layer,) = split_into_layers(
        rng.standard_normal(count_parameters((4, 2))).astype(np.float32), (4, 2)
    )

    w, c, b = (part.astype(np.float64) for part in layer)
    up = expit(given @ w + b)
    expected = np.zeros((5, 3))
    expected[:4, :2], expected[:4, 2], expected[4, :2] = given.T @ up, given.sum(0), up.sum(0)
    for h in np.array([[0, 0], [0, 1], [1, 0], [1, 1]]):
        chance = np.where(h, up, 1 - up).prod(axis=1, keepdims=True)
        back = expit(h @ w.T + c) * mask
        again = expit(back @ w + b)
        expected[:4, :2] -= (chance * back).T @ again
        expected[:4, 2] -= (chance * back).sum(axis=0)
        expected[4, :2] -= (chance * again).sum(axis=0)
    mu, lam = given.mean(axis=0), up.mean(axis=0)
    expected[:4, :2] -= np.outer(expected[:4, 2], lam) + np.outer(mu, expected[4, :2])

    found = np.empty((n_draws, count_parameters((4, 2))), np.float32)
    for k, flat in enumerate(found):
        states = row_states(RowRandom(k).key, np.arange(3))
        around = fill_contrastive_gradient(
            layer, given, seen, states, split_into_layers(flat, (4, 2))[0]
        )
        for mean, wanted in zip(around, (mu, lam), strict=True):
            np.testing.assert_allclose(mean, wanted, rtol=1e-5)
    flat = np.concatenate([expected[:4, :2].ravel(), expected[:4, 2], expected[4, :2]])
    z = (found.mean(axis=0) - flat) / (found.std(axis=0) / np.sqrt(n_draws) + 1e-6)
    assert np.abs(z).max() < 4
