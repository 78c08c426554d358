"""Layers of sigmoid units against finite differences, sums over rows and plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.numerics.networks.layered_network import (
    count_parameters,
    encode_layers,
    fill_gradient,
    negative_cross_entropies,
    negative_squared_errors,
    propagate_down,
    propagate_up,
    sigmoid,
    split_into_layers,
)
from tests.support.derivatives import differentiate

Floats = NDArray[np.float64]
SIZES = [(7, 4), (7, 5, 3), (6, 5, 4, 2)]


def network(sizes: tuple[int, ...], seed: int = 0) -> Floats:
    return 0.7 * np.random.default_rng(seed).standard_normal(count_parameters(sizes))


def rows(n_features: int, n_rows: int = 9, seed: int = 1) -> tuple[Floats, Floats, Floats]:
    """What goes in, what should come out (bits and shares), and what is seen of it."""
    rng = np.random.default_rng(seed)
    wanted = np.where(np.arange(n_rows)[:, None] % 2, rng.random((n_rows, n_features)), 1.0)
    seen = (rng.random((n_rows, n_features)) < 0.8).astype(np.float64)
    return rng.random((n_rows, n_features)), np.round(wanted, 1), seen


def slope_of(
    flat: Floats, sizes: tuple[int, ...], *given: Any, **more: Any
) -> tuple[Floats, tuple[Any, ...]]:
    slope = np.full_like(flat, np.nan)
    slopes = split_into_layers(slope, sizes)
    fill_gradient(split_into_layers(flat, sizes), *given, slopes, **more)
    return slope, slopes


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_slopes_are_those_of_finite_differences(
    sizes: tuple[int, ...], squared: bool, is_masked: bool
) -> None:
    given, wanted, seen = rows(sizes[0])
    mask = seen if is_masked else None

    def score(flat: Floats) -> float:
        layers = split_into_layers(flat, sizes)
        inputs = propagate_down(layers, propagate_up(layers, given)[-1])[-1]
        return float(
            (negative_squared_errors if squared else negative_cross_entropies)(
                inputs, wanted, mask
            ).sum()
        )

    flat = network(sizes)
    found, _ = slope_of(flat, sizes, given, wanted, mask, squared=squared)
    np.testing.assert_allclose(found, differentiate(score, flat), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("sizes", SIZES)
def test_penalties_on_codes_pull_all_layers_below(sizes: tuple[int, ...]) -> None:
    given, wanted, _ = rows(sizes[0])
    pulls = np.linspace(-1, 2, sizes[-1])

    def penalised(flat: Floats) -> float:
        layers = split_into_layers(flat, sizes)
        codes = propagate_up(layers, given)[-1]
        scores = negative_cross_entropies(propagate_down(layers, codes)[-1], wanted, None)
        return float(scores.sum() + (codes @ pulls).sum())

    flat, means = network(sizes), []

    def pull(mean: Floats) -> Floats:
        means.append(mean)
        return pulls

    found, _ = slope_of(flat, sizes, given, wanted, None, pull=pull)
    np.testing.assert_allclose(found, differentiate(penalised, flat), rtol=1e-6, atol=1e-7)
    (mean,) = means
    np.testing.assert_allclose(
        mean, propagate_up(split_into_layers(flat, sizes), given)[-1].mean(axis=0)
    )


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_sigmoids_are_those_of_scipy(kind: type[np.floating[Any]]) -> None:
    inputs = np.linspace(-30, 30, 60).reshape(12, 5).astype(kind)
    assert sigmoid(inputs).dtype == kind
    np.testing.assert_allclose(sigmoid(inputs), expit(inputs), rtol=3e-6)


def test_codes_are_those_of_the_network_with_missing_values_at_their_means() -> None:
    rng = np.random.default_rng(2)
    layers = split_into_layers(network((9, 6, 3)), (9, 6, 3))
    X, seen = (rng.random((2, 20, 9)) < 0.6).astype(np.uint8)
    means = rng.random(9)
    expected = propagate_up(layers, np.where(seen, X, means))[-1]
    np.testing.assert_allclose(encode_layers(layers, means, X * seen, seen), expected, rtol=1e-12)
    first, every = (encode_layers(layers, means, rows, None) for rows in (X[:1], X))
    assert every[:1].tobytes() == first.tobytes()
