"""Rotations keep what loadings explain, and reach simple structure where there is one."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.numerics.spectra.rotations import principal_axes, promax, varimax

RNG = np.random.default_rng(5)
LOADINGS = RNG.standard_normal((30, 3)) * [2.0, 1.0, 0.5]
SIMPLE = np.kron(np.eye(3), np.ones((6, 1))) * RNG.uniform(0.5, 1.0, (18, 1))
TURN = np.linalg.qr(RNG.standard_normal((3, 3)))[0]


@pytest.mark.parametrize("rotation", [principal_axes, varimax])
def test_rotations_keep_the_covariance(rotation) -> None:
    turned = rotation(LOADINGS)
    np.testing.assert_allclose(turned @ turned.T, LOADINGS @ LOADINGS.T, atol=1e-12)
    assert ((turned**3).sum(axis=0) > 0).all()


def test_principal_axes_are_orthogonal_and_ordered() -> None:
    turned = principal_axes(LOADINGS @ TURN)
    products = turned.T @ turned
    np.testing.assert_allclose(products, np.diag(np.diag(products)), atol=1e-10)
    assert (np.diff(np.diag(products)) < 0).all()
    np.testing.assert_allclose(turned, principal_axes(LOADINGS), atol=1e-10)


def test_varimax_finds_simple_structure() -> None:
    found = varimax(SIMPLE @ TURN)
    order = np.argsort([np.abs(column).argmax() for column in found.T])
    np.testing.assert_allclose(found[:, order], SIMPLE, atol=1e-6)


def test_varimax_is_the_best_rotation_of_a_plane() -> None:
    def spread(loadings):
        lengths = np.linalg.norm(loadings, axis=1, keepdims=True)
        return ((loadings / lengths) ** 2).var(axis=0).sum()

    plane = LOADINGS[:, :2]
    angles = np.linspace(0, np.pi / 2, 2000)
    turns = [np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) for a in angles]
    best = max(spread(plane @ turn) for turn in turns)
    assert spread(varimax(plane)) == pytest.approx(best, rel=1e-5)


def test_promax_keeps_the_covariance_and_finds_correlated_components() -> None:
    correlation = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 1.0]])
    start = SIMPLE @ np.linalg.cholesky(correlation) @ TURN
    pattern, found = promax(start)
    np.testing.assert_allclose(pattern @ found @ pattern.T, start @ start.T, atol=1e-10)
    np.testing.assert_allclose(np.diag(found), 1.0)
    off = np.sort(np.abs(found[np.triu_indices(3, 1)]))
    np.testing.assert_allclose(off, [0.0, 0.2, 0.5], atol=0.1)


def test_features_without_loadings_stay_without() -> None:
    with_zeros = np.vstack([LOADINGS, np.zeros((2, 3))])
    assert (varimax(with_zeros)[-2:] == 0).all()
    assert (principal_axes(with_zeros)[-2:] == 0).all()
