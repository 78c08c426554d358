"""A network of three layers against finite differences and plain formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.numerics.networks.layered_network import (
    ThreeLayerNetwork,
    compute_hidden_units,
    compute_outputs,
    row_scores,
    score_gradient,
)
from tests.support.derivatives import differentiate

Floats = NDArray[np.float64]
N_ROWS, N_FEATURES, N_HIDDEN, N_OUTPUTS = 9, 7, 3, 4
RNG = np.random.default_rng(3)
X = (RNG.random((N_ROWS, N_FEATURES)) < 0.5).astype(np.uint8)
OBSERVED = (RNG.random(X.shape) < 0.7).astype(np.uint8)


def network(n_outputs: int = N_OUTPUTS) -> ThreeLayerNetwork:
    rng = np.random.default_rng(1)
    shapes = ((N_FEATURES, N_HIDDEN), (N_HIDDEN,), (N_HIDDEN, n_outputs), (n_outputs,))
    return ThreeLayerNetwork(*(rng.standard_normal(shape) for shape in shapes))


def plain_hidden(found: ThreeLayerNetwork, inputs: Floats) -> Floats:
    return 1 / (1 + np.exp(-(inputs @ found.weights + found.biases)))


def wanted_of(is_category: bool) -> Floats:
    if is_category:
        return np.eye(N_OUTPUTS)[RNG.integers(0, N_OUTPUTS, N_ROWS)]
    return RNG.standard_normal((N_ROWS, 1))


@pytest.mark.parametrize("is_category", [True, False])
def test_slopes_are_finite_differences_of_the_mean_score(is_category: bool) -> None:
    found, wanted = network(N_OUTPUTS if is_category else 1), wanted_of(is_category)
    inputs = X - 0.3

    def score(flat: Floats) -> float:
        at = found.unflatten(flat)
        outputs = plain_hidden(at, inputs) @ at.outputs + at.output_biases
        return float(row_scores(outputs, wanted, is_category).mean())

    expected = differentiate(score, found.flatten(), 1e-6)
    slope = score_gradient(found, inputs, wanted, is_category).flatten()
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-8)
    assert np.abs(slope).min() > 1e-6


def test_scores_are_logs_of_probabilities_that_sum_to_one() -> None:
    outputs = RNG.standard_normal((N_ROWS, N_OUTPUTS))
    of_each = [row_scores(outputs, np.eye(N_OUTPUTS)[[k] * N_ROWS], True) for k in range(N_OUTPUTS)]
    np.testing.assert_allclose(np.exp(of_each).sum(axis=0), 1)
    expected = [-(3.0**2) / 2, -(1.0**2) / 2]
    np.testing.assert_allclose(
        row_scores(np.array([[3.0], [1.0]]), np.zeros((2, 1)), False), expected
    )


@pytest.mark.parametrize("observed", [None, OBSERVED])
def test_hidden_units_have_missing_inputs_at_their_means(observed: Any) -> None:
    found, means = network(), np.linspace(0.1, 0.9, N_FEATURES)
    mask = np.ones_like(X) if observed is None else observed
    values = compute_hidden_units(found, means, X & mask, observed)
    np.testing.assert_allclose(values, plain_hidden(found, np.where(mask, X, means)), rtol=1e-12)
    outputs = compute_outputs(found, values)
    np.testing.assert_allclose(outputs, values @ found.outputs + found.output_biases, rtol=1e-12)


@pytest.mark.parametrize("observed", [None, OBSERVED])
def test_rows_do_not_depend_on_their_neighbours(observed: Any) -> None:
    found, means = network(), np.linspace(0.1, 0.9, N_FEATURES)

    def outputs(at: slice) -> bytes:
        mask = None if observed is None else observed[at]
        return compute_outputs(
            found, compute_hidden_units(found, means, X[at] & OBSERVED[at], mask)
        ).tobytes()

    assert outputs(slice(None)) == b"".join(outputs(slice(n, n + 1)) for n in range(N_ROWS))
