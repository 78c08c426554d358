"""Edges, eigenvalues and spikes of grouped noise: closed forms, and dense matrices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.numerics.spectra.noise_spectrum import (
    GroupedNoise,
    count_above,
    draw_edge_points,
    find_edge,
    find_spikes,
    noise_eigenvalues,
    unfold,
)

Array = NDArray[np.float64]


def one_group(
    n: int, linear: float, spread: float, degrees: float, mean: float = 0.0
) -> GroupedNoise:
    return GroupedNoise(
        np.array([float(n)]),
        np.array([[mean]]),
        np.array([[linear]]),
        np.array([[spread]]),
        degrees,
    )


def test_independent_entries_have_a_semicircle() -> None:
    n = 1000
    edge = find_edge(one_group(n, 0.0, 1 / n, 10.0))
    assert edge.position == pytest.approx(1 + 2 * (1 - 2.5 / n) ** 0.5, rel=1e-9)
    assert edge.scale == pytest.approx(n ** (-2 / 3), rel=0.01)


@pytest.mark.parametrize(("n", "degrees"), [(3000, 1000.0), (2000, 2000.0), (2000, 100_000.0)])
def test_sample_correlations_follow_marchenko_and_pastur(n: int, degrees: float) -> None:
    edge = find_edge(one_group(n, degrees**-0.5, 0.0, degrees))
    ratio = (n - 2.5) / (degrees + 1.5)
    assert edge.position == pytest.approx((1 + ratio**0.5) ** 2, rel=2e-4)
    # Johnstone (2001), On the distribution of the largest eigenvalue, eq. 1.4.
    roots = n**0.5 + degrees**0.5
    scale = roots / degrees * (n**-0.5 + degrees**-0.5) ** (1 / 3)
    assert edge.scale == pytest.approx(scale, rel=0.01)


def leading(noise: GroupedNoise) -> Array:
    edge = find_edge(noise)
    values = noise_eigenvalues(noise, edge, np.linspace(-1, 20, 9))
    return np.concatenate([*find_spikes(noise, edge), values])


def matrices(noise: GroupedNoise) -> tuple[Array, Array, Array]:
    return noise.mean, noise.linear, noise.spread


def uneven_noise(degrees: float) -> GroupedNoise:
    """Four groups, the linear part of no low rank."""
    deviation = np.array([0.6, 1.0, 1.4, 2.0]) / degrees**0.5
    linear = np.sqrt(np.outer(deviation, deviation))
    linear[2:, 2:] *= 0.4
    spread = 0.3 * np.outer(deviation, deviation)
    return GroupedNoise(
        np.array([120.0, 90.0, 60.0, 30.0]), np.zeros((4, 4)), linear, spread, degrees
    )


def draw_eigenvalues(noise: GroupedNoise, n_leading: int, rng: np.random.Generator) -> Array:
    group = np.repeat(np.arange(len(noise.sizes)), noise.sizes.astype(int))
    mean, linear, spread = (a[np.ix_(group, group)] for a in matrices(noise))
    rows = rng.standard_normal((len(group), round(noise.degrees)))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    upper = np.triu(rng.standard_normal(mean.shape), 1)
    matrix = mean + linear * noise.degrees**0.5 * (rows @ rows.T)
    matrix += np.sqrt(spread) * (upper + upper.T)
    np.fill_diagonal(matrix, 1.0)
    return np.linalg.eigvalsh(matrix)[: -n_leading - 1 : -1]


@pytest.mark.parametrize("degrees", [150.0, pytest.param(2000.0, marks=pytest.mark.matrix)])
def test_dense_matrices_have_these_eigenvalues(degrees: float) -> None:
    """Means agree within their sampling error and a quarter of the scale of the edge."""
    noise, rng, n_draws = uneven_noise(degrees), np.random.default_rng(0), 40
    drawn = np.array([draw_eigenvalues(noise, 20, rng) for _ in range(n_draws)])
    edge = find_edge(noise)
    found = noise_eigenvalues(noise, edge, draw_edge_points(300, 20, 300, rng))
    error = np.sqrt(drawn.var(axis=0) / n_draws + found.var(axis=0) / 300)
    assert (np.abs(found.mean(axis=0) - drawn.mean(axis=0)) < 3 * error + edge.scale / 4).all()


def test_a_mean_makes_a_spike() -> None:
    n, lift = 1000, 3.0
    noise = one_group(n, 0.0, 1 / n, 10.0, mean=lift / n)
    (position,), (deviation,) = find_spikes(noise, find_edge(noise))
    # Of a Wigner matrix with rank one: lift + 1 / lift (Péché 2006).
    assert position == pytest.approx(1 - lift / n + lift + (1 - 2.5 / n) / lift, rel=1e-6)
    assert deviation == pytest.approx((2 / n) ** 0.5)


def test_a_mean_may_be_lost_in_noise() -> None:
    noise = one_group(1000, 0.0, 1e-3, 10.0, mean=0.9e-3)
    positions, deviations = find_spikes(noise, find_edge(noise))
    assert positions.shape == deviations.shape == (0,)


@pytest.mark.matrix
def test_spikes_are_those_of_dense_matrices() -> None:
    noise, rng = uneven_noise(800.0), np.random.default_rng(1)
    mean = np.zeros((4, 4))
    mean[2:, 2:] = 0.12
    noise = replace(noise, mean=mean)
    drawn = np.array([draw_eigenvalues(noise, 2, rng) for _ in range(40)])
    (position,), (deviation,) = find_spikes(noise, find_edge(noise))
    assert abs(drawn[:, 0].mean() - position) < 4 * drawn[:, 0].std() / 40**0.5 + 0.1 * deviation
    assert deviation == pytest.approx(drawn[:, 0].std(), rel=0.4)


# Of F_1: Bornemann (2010), On the numerical evaluation of distributions in random matrix theory.
_MEAN, _VARIANCE = -1.2065335745820, 1.607781034581


def test_the_first_follows_tracy_and_widom() -> None:
    first = -draw_edge_points(600, 1, 1500, np.random.default_rng(0))[:, 0]
    # Of what is not yet in the limit, n^(−2/3) = 0.014 is left.
    assert abs(first.mean() - _MEAN) < 4 * (_VARIANCE / 1500) ** 0.5 + 0.03
    assert abs(first.var() / _VARIANCE - 1) < 4 * (2 / 1500) ** 0.5 + 0.1


def test_they_are_those_of_dense_matrices() -> None:
    rng, n, n_draws = np.random.default_rng(1), 100, 300
    found = draw_edge_points(n, 10, n_draws, rng)
    dense = np.empty_like(found)
    for draw in dense:
        square = rng.standard_normal((n, n))
        matrix = (square + square.T) / 2
        matrix -= np.eye(n) * np.trace(matrix) / n
        leading = np.linalg.eigvalsh(matrix)[: -10 - 1 : -1] / np.sqrt(2 * n - 1)
        angle = np.arccos(np.clip(leading, -1, 1))
        above = (n - 0.5) / np.pi * (angle - np.sin(angle) * np.cos(angle))
        draw[:] = np.where(leading < 1, unfold(above), 2 * (n - 0.5) ** (2 / 3) * (1 - leading))
    error = np.sqrt((found.var(axis=0) + dense.var(axis=0)) / n_draws)
    assert (np.abs(found.mean(axis=0) - dense.mean(axis=0)) < 4.5 * error).all()
    np.testing.assert_allclose(found.std(axis=0), dense.std(axis=0), rtol=0.25)


def test_as_many_lie_above_as_their_rank_says() -> None:
    points = draw_edge_points(100_000, 64, 60, np.random.default_rng(2))
    assert (np.diff(points, axis=1) > 0).all()
    # Between k − 1, as many as lie above it, and k.
    expected = count_above(points).mean(axis=0)
    assert (np.abs(expected - (np.arange(64) + 0.5)) < 0.5).all()


def test_unfolding_is_undone() -> None:
    np.testing.assert_allclose(count_above(unfold(np.array([0.5, 7.0]))), [0.5, 7.0])
    assert count_above(-1.0) == 0.0
