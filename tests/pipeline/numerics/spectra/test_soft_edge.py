"""Unfolded leading eigenvalues: against dense matrices and the law of Tracy and Widom."""

from __future__ import annotations

import numpy as np

from pipeline.numerics.spectra.soft_edge import count_above, draw_edge_points, unfold

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


def test_few_rows() -> None:
    points = draw_edge_points(3, 3, 5, np.random.default_rng(3))
    assert points.shape == (5, 3)
    assert np.isfinite(points).all()
