"""Expectation propagation for items with levels, against quadrature and numerical derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.gaussian_items import GaussianItems
from pipeline.numerics.logistic.categories.row_posteriors import compute_row_posterior
from pipeline.numerics.logistic.categories.scores import sum_form_gradient
from pipeline.numerics.logistic.categories.sites import (
    choose_site_spacing,
    compute_site_posterior,
    list_line_nodes,
    list_plane_points,
    list_sites,
    sample_log_likelihood,
    score_site_rows,
    sum_site_statistics,
)
from pipeline.random import RowRandom

Floats = NDArray[np.float64]

SPACING = 0.2


def make_items(q: int, *, is_simple: bool = True, is_cumulative: bool = True) -> LevelItems:
    """Return three items per trait with correlated traits, as functions of standard ones."""
    rng = np.random.default_rng(4)
    n_planes = np.tile([1, 3, 2], q)
    slopes = np.kron(np.eye(q), rng.uniform(0.8, 2.0, (3, 1)))
    slopes[1] *= -1
    if not is_simple:
        slopes[::2, 0] += 0.6
    root = np.linalg.cholesky(0.6 * np.eye(q) + 0.4)
    weights = np.repeat(slopes @ root, n_planes, axis=0)
    if not is_cumulative:
        weights *= np.concatenate([np.arange(1, m + 1) for m in n_planes])[:, None]
    offsets = np.concatenate([np.sort(rng.normal(0, 1.5, m))[::-1] for m in n_planes])
    return LevelItems(weights, offsets, n_planes, is_cumulative)


def draw_rows(items: LevelItems, n: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return bits of random levels, and a mask."""
    rng = np.random.default_rng(5)
    levels = np.array([rng.integers(0, m + 1, n) for m in items.n_planes]).T
    numbers = np.concatenate([np.arange(1, m + 1) for m in items.n_planes])
    X = (np.repeat(levels, items.n_planes, axis=1) >= numbers).astype(np.uint8)
    mask = np.repeat(rng.random(levels.shape) < 0.8, items.n_planes, axis=1).astype(np.uint8)
    mask[0] = 0
    return X * mask, mask


@pytest.mark.parametrize("is_cumulative", [True, False])
@pytest.mark.parametrize(
    ("q", "is_simple", "tol"), [(2, True, 1e-3), (3, True, 1e-3), (2, False, 0.02)]
)
def test_posteriors_are_those_of_quadrature(
    q: int, is_simple: bool, tol: float, is_cumulative: bool
) -> None:
    items = make_items(q, is_simple=is_simple, is_cumulative=is_cumulative)
    X, mask = draw_rows(items, 60)
    assert len(list_sites(items)) == (q if is_simple else 3)
    found, exact = compute_site_posterior(X, mask, items), compute_row_posterior(X, mask, items)
    np.testing.assert_allclose(found.log_likelihood, exact.log_likelihood, atol=tol)
    np.testing.assert_allclose(found.mean, exact.mean, atol=tol)
    np.testing.assert_allclose(found.covariance, exact.covariance, atol=2 * tol)


def test_uncorrelated_traits_are_exact() -> None:
    items = make_items(2)
    items.weights[6:, 0] = 0.0
    X, mask = draw_rows(items, 40)
    found, nats = compute_site_posterior(X, mask, items), np.zeros(40)
    for k, planes in enumerate((slice(0, 6), slice(6, 12))):
        own = items._replace(
            weights=items.weights[planes, k : k + 1],
            offsets=items.offsets[planes],
            n_planes=items.n_planes[:3],
        )
        exact = compute_row_posterior(X[:, planes], mask[:, planes], own)
        nats += exact.log_likelihood
        np.testing.assert_allclose(found.mean[:, k], exact.mean[:, 0], atol=1e-7)
        np.testing.assert_allclose(found.covariance[:, k, k], exact.covariance[:, 0, 0], atol=1e-6)
    np.testing.assert_allclose(found.log_likelihood, nats, atol=1e-7)


@pytest.mark.parametrize("is_simple", [True, False])
@pytest.mark.parametrize("is_cumulative", [True, False])
def test_scores_are_the_gradient(is_simple: bool, is_cumulative: bool) -> None:
    """Those of rows, and of the sums of an E-step, are derivatives of the log-likelihood."""
    items = make_items(4, is_simple=is_simple, is_cumulative=is_cumulative)
    X, mask = draw_rows(items, 12)
    line, forms = list_line_nodes(SPACING), items.to_forms()
    every = scipy.sparse.eye_array(forms.size, format="csr")
    scores = score_site_rows(X, mask, items, every, line)
    sums = sum_site_statistics(X, mask, items, line).sums
    total = sum_form_gradient(items, list_plane_points(items, line), sums)
    np.testing.assert_allclose(scores.sum(axis=0), total, atol=1e-9)
    step = 1e-4
    # Along the slopes of an item, so that it stays in its site, and an offset.
    for plane, direction in ((0, forms[0]), (2, np.eye(5)[4]), (12, np.eye(5)[4])):
        change = np.zeros_like(forms)
        change[plane] = direction
        nats = [
            compute_site_posterior(
                X, mask, items.with_forms(forms + h * change), spacing=SPACING
            ).log_likelihood
            for h in (step, -step)
        ]
        numerical = (nats[0] - nats[1]) / (2 * step)
        np.testing.assert_allclose(scores @ change.ravel(), numerical, atol=1e-6)


def test_measurements_are_exact_and_narrow_the_posterior() -> None:
    rng, items = np.random.default_rng(1), make_items(2)
    gaussians = GaussianItems(
        rng.normal(0, 1, (2, 2)), np.zeros(2), np.array([0.5, 0.8]), np.ones(2)
    )
    items = items._replace(n_planes=np.append(items.n_planes, [0, 0]), gaussians=gaussians)
    bits, mask = draw_rows(items._replace(n_planes=items.n_planes[:-2]), 30)
    X = np.hstack([bits.astype(float), rng.standard_normal((30, 2))])
    mask = np.hstack([mask, np.ones((30, 2), np.uint8)])
    found, exact = compute_site_posterior(X, mask, items), compute_row_posterior(X, mask, items)
    np.testing.assert_allclose(found.log_likelihood, exact.log_likelihood, atol=5e-3)
    np.testing.assert_allclose(found.mean, exact.mean, atol=5e-3)
    only = items._replace(
        weights=np.zeros((0, 2)), offsets=np.zeros(0), n_planes=np.zeros(2, np.int64)
    )
    numbers = X[:, -2:], mask[:, -2:], only
    found, exact = compute_site_posterior(*numbers), compute_row_posterior(*numbers)
    np.testing.assert_allclose(found.log_likelihood, exact.log_likelihood, atol=1e-10)


def test_samples_estimate_the_log_likelihood() -> None:
    items = make_items(4)
    X, mask = draw_rows(items, 30)
    rows = np.arange(30)
    sampled = sample_log_likelihood(X, mask, items, RowRandom(1), rows)
    near = compute_site_posterior(X, mask, items)
    off = (near.log_likelihood - sampled.log_likelihood) / np.hypot(sampled.standard_error, 1e-3)
    assert np.abs(off[1:]).max() < 4
    assert np.sqrt((off[1:] ** 2).mean()) < 1.3
    some = np.arange(7, 19)
    again = sample_log_likelihood(X[some], mask[some], items, RowRandom(1), some)
    np.testing.assert_array_equal(again.log_likelihood, sampled.log_likelihood[some])


def test_a_row_does_not_depend_on_others() -> None:
    items = make_items(5)
    X, mask = draw_rows(items, 300)
    whole = compute_site_posterior(X, mask, items)
    part = compute_site_posterior(X[101:180], mask[101:180], items)
    for ours, theirs in zip(part[:3], whole[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs[101:180])


def test_weights_of_rows_repeat_them() -> None:
    items, line = make_items(4, is_simple=False), list_line_nodes(SPACING)
    X, mask = draw_rows(items, 20)
    once = sum_site_statistics(X, mask, items, line, np.full(20, 2.0))
    twice = sum_site_statistics(np.tile(X, (2, 1)), np.tile(mask, (2, 1)), items, line)
    for ours, theirs in zip((*once.sums, once.moments), (*twice.sums, twice.moments), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_rows_beyond_the_nodes_equal_quadrature() -> None:
    """Prior means far from 0, as a continuous value of an outlying row gives."""
    items = make_items(2)
    X, observed = draw_rows(items, 40)
    means = np.linspace([-14.0, 0.5], [14.0, -0.5], 40)
    exact = compute_row_posterior(X, observed, items, means)
    found = compute_site_posterior(X, observed, items, means)
    np.testing.assert_allclose(found.mean, exact.mean, atol=0.03)
    np.testing.assert_allclose(found.covariance, exact.covariance, atol=0.06)
    np.testing.assert_allclose(found.log_likelihood, exact.log_likelihood, atol=0.02)


def test_nodes_resolve_what_the_other_sites_leave() -> None:
    """Forty items on their own lines, all near one axis."""
    rng = np.random.default_rng(6)
    weights = rng.normal([1.5, 0.0, 0.0, 0.0], 0.2, (40, 4))
    items = LevelItems(weights, rng.normal(size=40), np.ones(40, np.int64), True)
    X = rng.integers(0, 2, (20, 40)).astype(np.uint8)
    found = compute_site_posterior(X, None, items, spacing=choose_site_spacing(items))
    fine = compute_site_posterior(X, None, items, spacing=0.1)
    np.testing.assert_allclose(found.mean, fine.mean, atol=1e-4)
    np.testing.assert_allclose(found.log_likelihood, fine.log_likelihood, atol=1e-4)
