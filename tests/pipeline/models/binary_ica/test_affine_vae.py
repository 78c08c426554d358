"""The affine autoencoder against finite differences, plain formulas and sums over all rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.models.binary_ica.affine_vae import (
    AffineVAE,
    VAEBatch,
    lower_bound_gradient,
    row_lower_bounds,
)

Floats = NDArray[np.float64]
N_ROWS, N_FEATURES, N_COMPONENTS, N_SEGMENTS = 9, 6, 2, 3
MEANS = np.full(N_FEATURES, 0.3)


def vae() -> AffineVAE:
    rng = np.random.default_rng(1)
    of_features, of_segments = (N_FEATURES, N_COMPONENTS), (N_SEGMENTS, N_COMPONENTS)
    shapes = (of_features, (N_FEATURES,), *[of_features] * 2, *[of_segments] * 4)
    return AffineVAE(*(rng.standard_normal(shape) for shape in shapes))


def rows_of(X: Any, segments: Any, seen: Floats | None = None) -> VAEBatch:
    some = 1.0 if seen is None else seen
    return VAEBatch(X * some, (X - MEANS) * some, seen, segments)


def some_rows(is_masked: bool = False, n_rows: int = N_ROWS) -> VAEBatch:
    rng = np.random.default_rng(2)
    X = (rng.random((n_rows, N_FEATURES)) < 0.5).astype(np.float64)
    seen = (rng.random(X.shape) < 0.7).astype(np.float64) if is_masked else None
    return rows_of(X, np.arange(n_rows) % N_SEGMENTS, seen)


def drawn_bounds(at: AffineVAE, rows: VAEBatch, noise: Floats) -> Floats:
    """log P(x, z) − log q(z), but for the entropy of q, which is exact."""
    u, seen = rows.segments, 1.0 if rows.seen is None else rows.seen
    mean = rows.inputs @ at.code_weights + at.code_offsets[u]
    log_variance = rows.inputs @ at.spread_weights + at.spread_offsets[u]
    z = mean + np.exp(log_variance / 2) * noise
    y = z @ at.mixing.T + at.offsets
    nats = (seen * (rows.X * y - np.logaddexp(0, y))).sum(axis=1)
    away = (mean - at.source_means[u]) ** 2 + np.exp(log_variance)
    scaled = away / np.exp(at.log_variances[u]) + at.log_variances[u] - log_variance - 1
    return np.asarray(nats - scaled.sum(axis=1) / 2)


@pytest.mark.parametrize("is_masked", [False, True])
def test_slopes_are_finite_differences_of_the_mean_bound(is_masked: bool) -> None:
    at, rows = vae(), some_rows(is_masked)
    noise = np.random.default_rng(3).standard_normal((N_ROWS, N_COMPONENTS))

    def bound(flat: Floats) -> float:
        return float(drawn_bounds(at.unflatten(flat), rows, noise).mean())

    flat, step = at.flatten(), 1e-6
    expected = [
        (bound(flat + one) - bound(flat - one)) / (2 * step) for one in step * np.eye(len(flat))
    ]
    found = lower_bound_gradient(at, rows, noise).flatten()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)
    assert np.abs(found).min() > 1e-6


@pytest.mark.parametrize("is_masked", [False, True])
def test_bounds_are_means_over_draws(is_masked: bool) -> None:
    rows, rng = some_rows(is_masked, 3), np.random.default_rng(4)
    draws = np.array([drawn_bounds(vae(), rows, rng.standard_normal((3, 2))) for _ in range(2000)])
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(row_lower_bounds(vae(), rows) - draws.mean(axis=0)) < 4 * error).all()


def test_bounds_lie_below_the_likelihood() -> None:
    at, segment = vae(), 1
    X = ((np.arange(2**N_FEATURES)[:, None] >> np.arange(N_FEATURES)) & 1).astype(np.float64)
    found = row_lower_bounds(at, rows_of(X, np.full(len(X), segment)))
    nodes, mass = np.polynomial.hermite_e.hermegauss(60)
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, N_COMPONENTS)
    y = (at.source_means[segment] + np.exp(at.log_variances[segment] / 2) * z) @ at.mixing.T
    y += at.offsets
    given_z = np.exp(X @ y.T - np.logaddexp(0, y).sum(axis=1))
    likelihood = np.log(given_z @ np.outer(mass, mass).ravel() / mass.sum() ** 2)
    assert np.exp(likelihood).sum() == pytest.approx(1)
    assert (found < likelihood).all()
