"""Sums on a lattice against those on a dense grid, and against exact integration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import norm

from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.centred_nodes import centred_e_step
from pipeline.numerics.logistic.centred_points import TraitItems, posterior_by_quadrature
from pipeline.numerics.logistic.latent_nodes import Nodes, node_statistics
from pipeline.numerics.logistic.lattice_nodes import choose_lattice, lattice_e_step
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice

SPACING = {1: 0.05, 2: 0.1, 3: 0.25}


def draw_rows(
    q: int, n_features: int = 15, n_rows: int = 60, slope: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw rows, the first without ones and the second without zeros, and their model."""
    rng = np.random.default_rng(q)
    weights, offsets = slope * rng.standard_normal((n_features, q)), rng.standard_normal(n_features)
    p = expit(rng.standard_normal((n_rows, q)) @ weights.T + offsets)
    X = (rng.random(p.shape) < p).astype(np.uint8)
    X[0], X[1] = 0, 1
    return X, weights, offsets


@pytest.mark.parametrize("q", [1, 2, 3])
def test_sums_are_those_of_a_dense_grid(q):
    X, weights, offsets = draw_rows(q)
    axis = np.arange(-7, 7.01, SPACING[q])
    points = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), axis=-1).reshape(-1, q)
    nodes = Nodes(points, q * np.log(SPACING[q]) + norm.logpdf(points).sum(axis=1))
    dense, sums = (
        node_statistics(X, None, LevelItems.from_binary(weights, offsets), nodes),
        lattice_e_step(X, None, weights, offsets),
    )
    extended = np.column_stack([nodes.points, np.ones(len(nodes.points))])
    sigma = expit(weights @ nodes.points.T + offsets[:, None])
    j, k = np.triu_indices(q + 1)
    assert sums.log_likelihood == pytest.approx(dense.log_likelihood, abs=3e-6 * len(X))
    np.testing.assert_allclose(
        sums.gradient, (dense.ones - dense.mass * sigma) @ extended, atol=1e-3
    )
    products = extended[:, j] * extended[:, k]
    np.testing.assert_allclose(
        sums.curvature, (dense.mass * sigma * (1 - sigma)) @ products, atol=1e-3
    )
    np.testing.assert_allclose(sums.moments[j, k], dense.rows @ products, atol=1e-3)
    np.testing.assert_array_equal(sums.moments, sums.moments.T)


@pytest.mark.parametrize(
    ("q", "n_features", "slope"), [(1, 400, 1.0), (2, 150, 1.0), (1, 10, 8.0), (2, 12, 4.0)]
)
def test_the_likelihood_is_exact_for_narrow_posteriors_and_steep_items(q, n_features, slope):
    X, weights, offsets = draw_rows(q, n_features, 40, slope)
    exact = posterior_by_quadrature(X, None, TraitItems(weights, offsets))
    sums = lattice_e_step(X, None, weights, offsets)
    error = sums.log_likelihood - exact.log_likelihood.sum()
    assert abs(error) < 1e-6 * len(X) + exact.standard_error.sum()


@pytest.mark.parametrize("q", [1, 2, 3])
def test_a_stretched_lattice_is_nearly_as_exact(q):
    X, weights, offsets = draw_rows(q)
    whole, stretched = (lattice_e_step(X, None, weights, offsets, stretch=s) for s in (1.0, 1.3))
    assert whole.log_likelihood != stretched.log_likelihood
    assert stretched.log_likelihood == pytest.approx(whole.log_likelihood, abs=2e-4 * len(X))
    np.testing.assert_allclose(stretched.gradient, whole.gradient, atol=2e-3 * len(X))


def test_rows_with_missing_values_have_centred_nodes():
    X, weights, offsets = draw_rows(2, 80)
    observed = np.ones(X.shape, np.uint8)
    observed[::3, 5] = 0
    is_complete = observed.all(axis=1)
    parts = (
        lattice_e_step(X[is_complete], None, weights, offsets),
        centred_e_step(X[~is_complete], observed[~is_complete], weights, offsets),
    )
    whole = lattice_e_step(X, observed, weights, offsets)
    *totals, nats = whole
    for total, *values in zip(totals, *(part[:-1] for part in parts), strict=True):
        np.testing.assert_array_equal(total, values[0] + values[1])
    np.testing.assert_array_equal(nats[is_complete], parts[0].row_log_likelihoods)
    np.testing.assert_array_equal(nats[~is_complete], parts[1].row_log_likelihoods)
    assert nats.sum() == pytest.approx(whole.log_likelihood, rel=1e-12)


def test_so_have_all_rows_where_a_lattice_would_be_too_large():
    X, weights, offsets = draw_rows(3, 3000, 12)
    assert choose_lattice(weights, offsets) is None
    for one, other in zip(
        lattice_e_step(X, None, weights, offsets),
        centred_e_step(X, None, weights, offsets),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("q", [1, 2, 3])
def test_slopes_without_bound_leave_the_lattice_finite(q):
    X, weights, offsets = draw_rows(q)
    weights[3], offsets[3] = 1e4, -3e3
    lattice = choose_lattice(weights, offsets)
    assert lattice is not None
    sums = lattice_e_step(X, None, weights, offsets)
    assert all(np.isfinite(values).all() for values in sums)


@pytest.mark.parametrize(
    ("q", "n_features", "slope", "step"),
    [(1, 15, 1.0, 0.01), (1, 300, 1.0, 0.005), (2, 15, 1.0, 0.05), (2, 60, 3.0, 0.02)]
    + [(3, 15, 1.0, 0.2)],
)
def test_moments_of_rows_are_those_of_a_dense_grid(q, n_features, slope, step):
    X, weights, offsets = draw_rows(q, n_features, 12, slope)
    observed = np.ones(X.shape, np.uint8)
    observed[::2, : n_features // 3] = 0
    found = posterior_on_lattice(X, observed, TraitItems(weights, offsets))
    axis = np.arange(-7, 7 + step / 2, step)
    x = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), axis=-1).reshape(-1, q)
    prior, (all_curves, some_curves) = norm.logpdf(x).sum(axis=1), np.zeros((2, len(x)))
    for i in range(n_features):
        curve = log_expit(-x @ weights[i] - offsets[i])
        all_curves += curve
        some_curves += curve * observed[0, i]
    assert found.standard_error.max() < 1e-4
    for n, t in enumerate((X * observed).astype(float)):
        curves = all_curves if observed[n].all() else some_curves
        scores = x @ (t @ weights) + t @ offsets + curves + prior
        log_likelihood = logsumexp(scores) + q * np.log(step)
        assert abs(found.log_likelihood[n] - log_likelihood) < 3 * found.standard_error[n] + 1e-7
        shares = np.exp(scores - logsumexp(scores))
        mean = shares @ x
        covariance = np.einsum("l,lj,lk", shares, x - mean, x - mean)
        scale = np.sqrt(np.diag(covariance))
        np.testing.assert_allclose(found.mean[n] / scale, mean / scale, atol=1e-4)
        products = np.outer(scale, scale)
        np.testing.assert_allclose(found.covariance[n] / products, covariance / products, atol=1e-3)


@pytest.mark.parametrize(
    ("q", "n_features", "slope"),
    [(1, 15, 1.0), (1, 300, 1.0), (1, 4, 6.0), (2, 3, 1.0), (2, 20, 1.0), (2, 64, 1.5)],
)
def test_moments_of_complete_rows_are_interpolated_to_many_digits(q, n_features, slope):
    X, weights, offsets = draw_rows(q, n_features, 40, slope)
    X[0], X[1] = 0, 1
    means = np.linspace(-1, 1, len(X))[:, None] * np.array([1.0, -0.7])[:q]
    found = posterior_on_lattice(X, None, TraitItems(weights, offsets), means)
    axis, step = np.linspace(-9, 9, 4001 if q == 1 else 301, retstep=True)
    x = np.stack(np.meshgrid(*[axis] * q, indexing="ij"), axis=-1).reshape(-1, q)
    eta = weights @ x.T + offsets[:, None]
    scores = X @ eta + log_expit(-eta).sum(axis=0)
    scores += norm.logpdf(x - means[:, None]).sum(axis=2)
    log_likelihood = logsumexp(scores, axis=1) + q * np.log(step)
    shares = np.exp(scores + q * np.log(step) - log_likelihood[:, None])
    mean = shares @ x
    products = shares @ (x[:, :, None] * x[:, None]).reshape(len(x), -1)
    covariance = products.reshape(-1, q, q) - mean[:, :, None] * mean[:, None]
    is_near = found.standard_error < (1e-10 if q == 1 else 1e-6)
    assert is_near.mean() > (0 if q == 1 else 0.5)
    atol = 2e-9 if q == 1 else 1e-8
    np.testing.assert_allclose(found.log_likelihood[is_near], log_likelihood[is_near], atol=atol)
    np.testing.assert_allclose(found.mean[is_near], mean[is_near], atol=atol)
    np.testing.assert_allclose(found.covariance[is_near], covariance[is_near], atol=atol)


@pytest.mark.parametrize("q", [1, 2, 3])
def test_a_row_has_the_same_codes_whatever_the_other_rows(q):
    X, weights, offsets = draw_rows(q)
    observed = np.ones(X.shape, np.uint8)
    observed[4, :2] = 0
    items, some = TraitItems(weights, offsets), np.array([0, 4, 30])
    whole = posterior_on_lattice(X, observed, items)
    parts = [posterior_on_lattice(X[n : n + 1], observed[n : n + 1], items) for n in some]
    for values, *ones in zip(whole.take_rows(some), *parts, strict=True):
        np.testing.assert_array_equal(values, np.concatenate(ones))
    none = posterior_on_lattice(X[:0], observed[:0], items)
    assert none.covariance.shape == (0, q, q)


def draw_hard_rows(case):
    """Draw rows that a lattice does not resolve."""
    if case == "steep":
        X, weights, offsets = draw_rows(2, 12)
        weights[3] = 60.0
    elif case.startswith(
        "far"
    ):  # all items of all rows are solved, as at 10 deviations from the mean
        X, weights, offsets = draw_rows(1, 2000)
        X[:], weights[:], offsets[:] = 1, 1.0, -10.0
    elif case == "narrow":
        X, weights, offsets = draw_rows(3, 2000, 5, 2.0)
    else:
        X, weights, offsets = draw_rows(3, 200)
    observed = np.ones(X.shape, np.uint8)
    observed[:, :100] = case not in ("missing", "far, with missing values")
    return X, observed, TraitItems(weights, offsets)


@pytest.mark.parametrize("case", ["steep", "far", "far, with missing values", "narrow", "missing"])
def test_rows_that_a_lattice_does_not_resolve_have_points_of_their_own(case):
    X, observed, items = draw_hard_rows(case)
    found = posterior_on_lattice(X[:5], observed[:5], items)
    expected = posterior_by_quadrature(X[:5], observed[:5], items)
    assert all(np.isfinite(values).all() for values in found)
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_array_equal(values, others)
