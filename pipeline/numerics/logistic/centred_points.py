"""Integrals over the traits of each row, on points placed at the row's posterior.

x ~ N(0, I_q), P(t_i = 1 | x) = σ(w_iᵀ x + b_i). Nodes shared by all rows miss posteriors that are
narrower than the distance of the nodes. Here row n has its own points x_nl around a Gaussian near
its posterior p(x | t_n), which is log-concave:

    P(t_n) ≈ Σ_l u_nl,   u_nl = v_l N(x_nl; 0, I) P(t_n | x_nl) / r_n(x_nl),

where the v_l are the weights of points that represent the density r_n. The points are one of:

* a Gauss–Hermite rule (adaptive quadrature: Naylor & Smith, Applied Statistics 1982), placed twice,
  the second time by the moments from the first;
* points across the edges that very steep items give the posterior (`place_steep_points`);
* random draws (importance sampling).

The moments of x are those of the points with the weights u_nl. A row costs n_points n_features q
operations of about 10 ns. Rows are processed one by one, and no row's result depends on other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce
from typing import NamedTuple

import numpy as np
import scipy
from numba import njit
from numpy.typing import NDArray

from pipeline.numerics.logistic.centred_nodes import LANES, fill_laplace, iter_row_batches
from pipeline.numerics.logistic.latent_nodes import RowPosterior, gauss_hermite
from pipeline.numerics.logistic.logistic_lanes import (
    FACTORS_PER_LOG,
    add_multiple,
    copy,
    expm1_minus,
    fill,
    inlined,
    kernel,
    subtract_logarithms,
)
from pipeline.random import RowRandom

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

DRAWS_PER_ROW = 1000
"""Default number of draws per row."""
_FIRST_NODES, _NODES = 7, {1: 31, 2: 15, 3: 11}  # per axis
_EDGE_POINTS_PER_AXIS = {
    1: ((193,), (385,), (1537,)),
    2: ((65, 33), (49, 25), (97, 49), (193, 97)),
    3: ((33, 25, 25), (49, 17, 17), (65, 25, 25)),
}
_PRIOR_REACH = 10.0  # standard deviations of the prior that points across edges cover
_ERROR_TOLERANCE = 1e-4  # nats per row
_MAX_STEEPNESS = 2.5 / math.pi  # times √n is the slope that n Gauss–Hermite nodes resolve
# The difference of two rules is the error of the coarser rule. The error of the finer rule is at
# most this power of it, because both decrease exponentially with the number of points (compare
# R. Piessens et al., QUADPACK, 1983).
_HERMITE_ERROR_POWER, _TRAPEZOID_ERROR_POWER = 2.0, 1.5
_PROPOSAL_STRETCH, _PRIOR_SHARE = 1.2, 0.1  # of the Gaussian; share of draws from the prior
_POINT_SPREAD, _MAX_POINT_SPREAD = 3.0, 3.0  # c β, and the largest c
_BATCH_ENTRIES = 2**19  # coordinates of points: 4 MiB
EDGE_REACH = 5.0  # standard deviations within which an edge matters
_MAX_STEPS, _MIN_GAIN = 100, 1e-8  # of Newton's method; nats
_MODE_LANES = 4 * LANES


class RowGaussians(NamedTuple):
    """A Gaussian per row: means (n_samples, q), covariances (n_samples, q, q)."""

    mean: Floats
    covariance: Floats


class TraitItems(NamedTuple):
    """The model: w (n_features, q) and b (n_features,)."""

    weights: Floats
    offsets: Floats


class WeightedPoints(NamedTuple):
    """Points x_nl (n_rows, n_points, q), and log v_l N(x_nl) / r_n(x_nl) (n_rows, n_points)."""

    x: Floats
    log_weights: Floats


class _PointRule(NamedTuple):
    """Points of rows, and the weights of a second rule relative to the first; none for draws."""

    points: Callable[[slice], WeightedPoints]
    n_points: int
    second: Floats


def posterior_by_quadrature(
    X: Bits, observed: Bits | None, items: TraitItems, row_means: Floats | None = None
) -> RowPosterior:
    """Integrate over x by quadrature, for up to 3 components.

    A row's result depends on that row alone. Its error is estimated by a second rule on some of the
    points. If the error is above 1e-4 nats, or an item is so steep that the posterior has an edge,
    the row is integrated on points across the edges, up to 90 times as many.

    Parameters
    ----------
    X
        Values 0 and 1, (n_samples, n_features).
    observed
        Mask of the same shape; None if all values are observed.
    items
        The model.
    row_means
        Mean of the prior of each row, (n_samples, q); None if all are 0.
    """
    q = items.weights.shape[1]
    n_nodes, means = _NODES.get(q, 2), np.zeros((len(X), q)) if row_means is None else row_means
    at_mode = find_posterior_modes(X, observed, items, means)
    by_moments = _gaussians_from_moments(
        _integrate_on_gaussians(X, observed, items, means, at_mode, _FIRST_NODES), at_mode
    )
    posterior = _integrate_on_gaussians(X, observed, items, means, by_moments, n_nodes)
    posterior.standard_error[:] **= _HERMITE_ERROR_POWER
    # A Gaussian that an edge has misled may be too narrow to reach the edge, so both are checked.
    mask = _full_mask(X, observed)
    edges = np.maximum(
        _find_steepest_edges(mask, items, at_mode), _find_steepest_edges(mask, items, by_moments)
    )
    has_edge = edges > _MAX_STEEPNESS * math.sqrt(n_nodes)
    difficult = np.flatnonzero(has_edge | (posterior.standard_error > _ERROR_TOLERANCE))
    if difficult.size:
        difficult_mask = None if observed is None else observed[difficult]
        gaussians = RowGaussians(*(part[difficult] for part in at_mode))
        refined = _posterior_with_edges(
            X[difficult], difficult_mask, items, means[difficult], gaussians
        )
        posterior.put_rows(difficult, refined)
    return posterior


def _posterior_with_edges(
    X: Bits, observed: Bits | None, items: TraitItems, row_means: Floats, near: RowGaussians
) -> RowPosterior:
    """Integrate across edges: first over the whole prior to find the mass, then around it."""
    first, *levels = _EDGE_POINTS_PER_AXIS[near.mean.shape[1]]
    reach = _prior_reach(near)
    posterior = _integrate_across_edges(X, observed, items, row_means, near, first, reach)
    rows = np.arange(len(X))
    for n_per_axis in levels:
        mask = None if observed is None else observed[rows]
        gaussians = RowGaussians(*(part[rows] for part in near))
        gaussians = _gaussians_from_moments(posterior.take_rows(rows), gaussians)
        reach = np.full(len(rows), _PRIOR_REACH)
        refined = _integrate_across_edges(
            X[rows], mask, items, row_means[rows], gaussians, n_per_axis, reach
        )
        refined.standard_error[:] **= _TRAPEZOID_ERROR_POWER
        posterior.put_rows(rows, refined)
        rows = rows[refined.standard_error > _ERROR_TOLERANCE]
    return posterior


def _prior_reach(near: RowGaussians) -> Floats:
    """Return the reach of the prior in units of the row's Gaussian, (n_rows,)."""
    diagonals = np.diagonal(_cholesky_roots(near.covariance), axis1=1, axis2=2)
    return np.asarray(_PRIOR_REACH / diagonals.min(axis=1))


def _gaussians_from_moments(posterior: RowPosterior, near: RowGaussians) -> RowGaussians:
    """Return Gaussians with these moments, and a little variance if one point has all mass."""
    return RowGaussians(posterior.mean, posterior.covariance + 1e-6 * near.covariance)


def _find_steepest_edges(mask: Bits, items: TraitItems, near: RowGaussians) -> Floats:
    """Return the steepest edge that each row's Gaussian reaches, (n_rows,)."""
    steepest = np.empty(len(mask))
    fill_steepest_edges(mask, *items, near.mean, _cholesky_roots(near.covariance), steepest)
    return steepest


def posterior_by_sampling(
    X: Bits,
    observed: Bits | None,
    items: TraitItems,
    rng: RowRandom,
    rows: NDArray[np.int64],
    n_draws: int = DRAWS_PER_ROW,
) -> RowPosterior:
    """Integrate over x by importance sampling, for any number of components.

    Draws come from a Gaussian at the mode, a little wider than the curvature suggests; with the
    variational posterior, which is too narrow, errors are up to thirty times larger. A tenth of the
    draws come from the prior, so that no draw can outweigh all others.

    Parameters
    ----------
    X, observed, items
        As for `posterior_by_quadrature`.
    rng, rows
        Source of the draws, and the number of each row, (n_samples,).
    n_draws
        Draws per row.
    """
    near = find_posterior_modes(X, observed, items)

    def points(batch: slice) -> WeightedPoints:
        own = RowGaussians(near.mean[batch], near.covariance[batch])
        return draw_points(own, rng, rows[batch], n_draws)

    return _integrate_in_batches(X, observed, items, _PointRule(points, n_draws, np.empty(0)))


def draw_points(
    near: RowGaussians, rng: RowRandom, rows: NDArray[np.int64], n_draws: int = DRAWS_PER_ROW
) -> WeightedPoints:
    """Draw points near Gaussians of rows with these numbers, see `posterior_by_sampling`."""
    mean, q = near.mean, near.mean.shape[1]
    n_prior, root = round(_PRIOR_SHARE * n_draws), _PROPOSAL_STRETCH * _cholesky_roots(near[1])
    x = rng.normal(rows, n_draws * q).reshape(-1, n_draws, q)
    x[:, n_prior:] = _place_points(x[:, n_prior:], mean, root)
    whitened = np.linalg.solve(root, np.swapaxes(x - mean[:, None], 1, 2))
    log_ratio = 0.5 * ((x**2).sum(axis=2) - (whitened**2).sum(axis=1)) - _log_det(root)
    log_mixture = np.logaddexp(math.log(_PRIOR_SHARE), math.log1p(-_PRIOR_SHARE) + log_ratio)
    return WeightedPoints(x, -log_mixture - math.log(n_draws))


def find_posterior_modes(
    X: Bits, observed: Bits | None, items: TraitItems, row_means: Floats | None = None
) -> RowGaussians:
    """Find the mode of each row's posterior, and the inverse curvature, by Newton's method.

    `row_means` are the means of the priors, (n_samples, q), or all 0.
    """
    (n, q), weight = (len(X), items.weights.shape[1]), np.ones(len(X))
    gaussians = RowGaussians(np.empty((n, q)), np.empty((n, q, q)))
    mean, root = np.empty((q, _MODE_LANES)), np.zeros((q, q, _MODE_LANES))
    for batch in iter_row_batches(X, observed, weight, _MODE_LANES):
        linear = batch.sum_linear(*items, row_means)
        precisions = batch.invert_variances(None)
        mean[:] = 0.0
        fill_laplace(batch.mask, *items, linear, precisions, _MAX_STEPS, _MIN_GAIN, 0.0, mean, root)
        own = root[:, :, : batch.n_rows]
        gaussians.mean[batch.rows] = mean[:, : batch.n_rows].T
        gaussians.covariance[batch.rows] = np.einsum("acn,bcn->nab", own, own)
    return gaussians


def _integrate_on_gaussians(
    X: Bits,
    observed: Bits | None,
    items: TraitItems,
    row_means: Floats,
    near: RowGaussians,
    n_per_axis: int,
) -> RowPosterior:
    """Integrate by a Gauss–Hermite rule placed on each row's Gaussian."""
    z, log_weights, second = _make_hermite_rule(n_per_axis, near.mean.shape[1])

    def points(batch: slice) -> WeightedPoints:
        root = _cholesky_roots(near.covariance[batch])
        x = _place_points(z, near.mean[batch], root)
        squares = _sum_squares(x, row_means[batch])
        return WeightedPoints(x, log_weights - 0.5 * squares + _log_det(root))

    return _integrate_in_batches(X, observed, items, _PointRule(points, len(z), second))


class _HermiteRule(NamedTuple):
    """Points z_l, (n_points, q), log v_l + ½ z_l², and `_half_rule_weights`, (n_points,) each."""

    z: Floats
    log_weights: Floats
    second: Floats


@cache  # it takes longer than the integrals of a single row
def _make_hermite_rule(n_per_axis: int, q: int) -> _HermiteRule:
    z, log_v = gauss_hermite(n_per_axis, q)
    return _HermiteRule(z, log_v + 0.5 * (z**2).sum(axis=1), _half_rule_weights(n_per_axis, q))


def _half_rule_weights(n_per_axis: int, q: int) -> Floats:
    """Return weights of a rule on every second node, relative to the full rule, (n_points,).

    The rule is exact for polynomials of degrees below its number of nodes per axis.
    """
    z, log_v = gauss_hermite(n_per_axis, 1)
    nodes = z[1::2, 0]
    degree = len(nodes)
    values = scipy.special.eval_hermitenorm(np.arange(degree)[:, None], nodes)
    ratio = np.zeros(n_per_axis)
    ratio[1::2] = np.linalg.solve(values, np.eye(degree)[0]) / np.exp(log_v[1::2])
    return reduce(np.multiply.outer, [ratio] * q).ravel()


def _integrate_across_edges(
    X: Bits,
    observed: Bits | None,
    items: TraitItems,
    row_means: Floats,
    near: RowGaussians,
    n_per_axis: tuple[int, ...],
    reach: Floats,
) -> RowPosterior:
    mask = _full_mask(X, observed)

    def points(batch: slice) -> WeightedPoints:
        mean, root = near.mean[batch], _cholesky_roots(near.covariance[batch])
        observed = mask[batch]
        slopes = (items.weights @ root) * observed[:, :, None]
        eta = (items.weights * mean[:, None]).sum(axis=2) + items.offsets
        z, log_volumes = place_steep_points(slopes, eta * observed, reach[batch], n_per_axis)
        x = _place_points(z, mean, root)
        squares = _sum_squares(x, row_means[batch])
        return WeightedPoints(x, log_volumes - 0.5 * squares + _log_det(root))

    rule = _PointRule(points, math.prod(n_per_axis), half_grid_weights(n_per_axis))
    return _integrate_in_batches(X, observed, items, rule)


def _cholesky_roots(covariance: Floats) -> Floats:
    """Return lower triangles L with L Lᵀ = C, (n_rows, q, q)."""
    return np.asarray(np.linalg.cholesky(covariance), np.float64)


def _place_points(z: Floats, mean: Floats, root: Floats) -> Floats:
    return mean[:, None] + z @ np.swapaxes(root, 1, 2)


def _sum_squares(x: Floats, row_means: Floats) -> Floats:
    """Return the squared distances of points from the means of the priors, (n_rows, n_points)."""
    squares: Floats = ((x - row_means[:, None]) ** 2).sum(axis=2)
    return squares


def _log_det(root: Floats) -> Floats:
    """Return log det L, (n_rows, 1)."""
    diagonals = np.diagonal(root, axis1=1, axis2=2)
    return np.asarray(np.log(diagonals).sum(axis=1, keepdims=True), np.float64)


def _integrate_in_batches(
    X: Bits, observed: Bits | None, items: TraitItems, rule: _PointRule
) -> RowPosterior:
    """Integrate in batches that fit in the cache."""
    n, q = len(X), items.weights.shape[1]
    posterior = RowPosterior.make_empty(n, q)._replace(standard_error=np.empty(n))
    mask = _full_mask(X, observed)
    height = max(1, _BATCH_ENTRIES // (rule.n_points * q))
    for start in range(0, n, height):
        batch = slice(start, start + height)
        own = *rule.points(batch), rule.second, *posterior.take_rows(batch)[:4]
        integrate_rows(X[batch], mask[batch], *items, *own)
    return posterior


def _full_mask(X: Bits, observed: Bits | None) -> Bits:
    return np.ones_like(X) if observed is None else observed


class SteepPoints(NamedTuple):
    """Points of rows, in units of their Gaussians."""

    z: Floats  # (n_rows, n_points, q)
    # Log of the volume of each point, divided by (2π)^(q/2), (n_rows, n_points).
    log_volumes: Floats


def place_steep_points(
    slopes: Floats, offsets: Floats, reach: Floats, n_per_axis: tuple[int, ...]
) -> SteepPoints:
    """Place points across the edges of the posteriors.

    An item far steeper than the posterior is wide gives the posterior an edge, which a
    Gauss–Hermite rule misses if it lies between two nodes. Here each row has its own axes: the
    first crosses the edge of its steepest item, each further one the steepest remaining edge. Along
    an axis the points are z = τ + c sinh y with y in equal steps: dense at the edge τ, and ever
    sparser away from it. With c = 3 / β, an edge of any slope β looks the same in y, and Gaussian
    tails stay smooth, so that the trapezoid rule converges like exp(−const / step) (L. N.
    Trefethen, J. A. C. Weideman, SIAM Review 56 (2014)). Every second point forms a rule of twice
    the step, which shows the error.

    Parameters
    ----------
    slopes, offsets
        Slopes and offsets of the items in units of the row's Gaussian, (n_rows, n_features, q) and
        (n_rows, n_features); 0 where a value is missing.
    reach
        Distance that the points cover, in units of the row's Gaussian, (n_rows,).
    n_per_axis
        Number of points along each axis, odd.
    """
    frame, centres, widths = _find_axes(slopes, offsets)
    n_rows, q = centres.shape
    coordinates, log_lengths = [], []
    for k, n in enumerate(n_per_axis):
        positions, log_length = _place_on_axis(centres[:, k], widths[:, k], reach, n)
        shape = [n_rows, *(n if j == k else 1 for j in range(q))]
        coordinates.append(positions.reshape(shape))
        log_lengths.append(log_length.reshape(shape))
    grid = np.stack(np.broadcast_arrays(*coordinates), axis=-1).reshape(n_rows, -1, q)
    log_volumes = sum(log_lengths[1:], log_lengths[0]).reshape(n_rows, -1)
    return SteepPoints(grid @ frame, log_volumes)


def half_grid_weights(n_per_axis: tuple[int, ...]) -> Floats:
    """Return weights of the rule of twice the step, relative to the full rule: 2^q or 0."""
    shares = np.ones(1)
    for n in n_per_axis:
        shares = np.multiply.outer(shares, 2.0 * (np.arange(n) % 2 == 0)).ravel()
    return shares


def _find_axes(slopes: Floats, offsets: Floats) -> tuple[Floats, Floats, Floats]:
    """Return axes, (n_rows, q, q), one per line, and the edge τ and c on each, (n_rows, q)."""
    n_rows, _, q = slopes.shape
    frame, remaining, rows = np.zeros((n_rows, q, q)), slopes.copy(), np.arange(n_rows)
    centres, widths = np.zeros((2, n_rows, q))
    for k in range(q):
        size = np.sqrt((remaining**2).sum(axis=2))
        steepest = np.argmax(np.where(abs(offsets) <= EDGE_REACH * size, size, 0.0), axis=1)
        beta = np.maximum(size[rows, steepest], _POINT_SPREAD / _MAX_POINT_SPREAD)
        frame[:, k] = _unit_vectors(remaining[rows, steepest], frame[:, :k])
        centres[:, k] = np.clip(-offsets[rows, steepest] / beta, -EDGE_REACH, EDGE_REACH)
        widths[:, k] = _POINT_SPREAD / beta
        projections = (remaining * frame[:, None, k]).sum(axis=2)
        remaining -= projections[:, :, None] * frame[:, None, k]
    return frame, centres, widths


def _unit_vectors(vectors: Floats, axes: Floats) -> Floats:
    """Scale vectors, (n_rows, q), to length 1; replace 0 by a unit vector orthogonal to others."""
    q = vectors.shape[1]
    units = np.tile(np.eye(q), (len(vectors), 1, 1))
    candidates = np.concatenate([vectors[:, None], units], axis=1)
    for axis in np.swapaxes(axes, 0, 1):
        projections = (candidates * axis[:, None]).sum(axis=2)
        candidates -= projections[:, :, None] * axis[:, None]
    size = np.sqrt((candidates**2).sum(axis=2))
    size[:, 0] *= 1e9  # prefers the given vector, unless it is rounding error
    best = np.argmax(size, axis=1)
    chosen = candidates[np.arange(len(vectors)), best]
    return np.asarray(chosen / np.sqrt((chosen**2).sum(axis=1, keepdims=True)))


def _place_on_axis(centre: Floats, width: Floats, reach: Floats, n: int) -> tuple[Floats, Floats]:
    """Place n points on an axis; also return the log of their lengths divided by √(2π)."""
    low, high = (np.arcsinh((end - centre) / width) for end in (-reach, reach))
    step = (high - low) / (n - 1)
    y = low[:, None] + step[:, None] * np.arange(n)
    positions = centre[:, None] + width[:, None] * np.sinh(y)
    length = (width * step)[:, None] * np.cosh(y) / np.sqrt(2 * np.pi)
    return positions, np.log(length)


@njit(nogil=True, cache=True, error_model="numpy")
def integrate_rows(
    X: Bits,
    observed: Bits,
    weights: Floats,
    offsets: Floats,
    x: Floats,
    log_weights: Floats,
    second: Floats,
    mean: Floats,
    covariance: Floats,
    log_likelihood: Floats,
    standard_error: Floats,
) -> None:
    """Compute the posterior moments, log-likelihood and error of each row.

    `second` holds the weights of a second rule relative to the points' weights; none for draws.
    """
    n_points = x.shape[1]
    scores, scratch = np.empty(n_points), np.empty((x.shape[2] + 2, n_points))
    for n in range(len(X)):
        _add_log_conditionals(X[n], observed[n], weights, offsets, x[n], scratch, scores)
        scores += log_weights[n]
        largest = scores.max()
        scores[:] = np.exp(scores - largest)
        total = scores.sum()
        scores /= total
        log_likelihood[n] = largest + math.log(total)
        standard_error[n] = (
            _rule_difference(scores, second) if len(second) else _sampling_error(scores)
        )
        _moments_by_share(scores, x[n], mean[n], covariance[n])


@njit(nogil=True, cache=True, error_model="numpy")
def _sampling_error(shares: Floats) -> float:
    """Return the standard error of the log of a mean of draws with these shares."""
    n = len(shares)
    return math.sqrt(max((shares**2).sum() - 1 / n, 0.0) * n / (n - 1))


@njit(nogil=True, cache=True, error_model="numpy")
def _rule_difference(shares: Floats, second: Floats) -> float:
    """Return the difference between the logs of two rules, at most 1 nat."""
    total = 0.0
    for point in range(len(shares)):
        total += shares[point] * second[point]
    return min(abs(math.log(total)), 1.0) if total > 0 else 1.0


@njit(nogil=True, cache=True, error_model="numpy")
def fill_steepest_edges(
    observed: Bits, weights: Floats, offsets: Floats, mean: Floats, root: Floats, steepest: Floats
) -> None:
    """Compute the steepest slope among the observed items whose edge the row's Gaussian reaches.

    Slopes, (n_samples,), are in units of the Gaussian.
    """
    q = mean.shape[1]
    for n in range(len(mean)):
        largest = 0.0
        for i in range(len(weights)):
            if observed[n, i]:
                eta, size = offsets[i], 0.0
                for k in range(q):
                    eta += weights[i, k] * mean[n, k]
                    slope = 0.0
                    for j in range(k, q):
                        slope += weights[i, j] * root[n, j, k]
                    size += slope * slope
                if eta * eta <= EDGE_REACH * EDGE_REACH * size:
                    largest = max(largest, size)
        steepest[n] = math.sqrt(largest)


@kernel
def _add_log_conditionals(
    t: Bits,
    observed: Bits,
    weights: Floats,
    offsets: Floats,
    x: Floats,
    scratch: Floats,
    scores: Floats,
) -> None:
    """Compute log P(t | x) = −Σ_i log(1 + exp(∓η_i)) at all points.

    The loops over points have no branches, so that they are vectorized.
    """
    product, eta, n_factors = scratch[-2], scratch[-1], 0
    for k in range(x.shape[1]):
        copy(x[:, k], scratch[k])
    fill(scores, 0.0)
    fill(product, 1.0)
    for i in range(len(t)):
        if observed[i]:
            sign = 1.0 if t[i] else -1.0
            fill(eta, sign * offsets[i])
            for k in range(x.shape[1]):
                add_multiple(sign * weights[i, k], scratch[k], eta)
            _multiply_factors(eta, scores, product)
            n_factors += 1
            if n_factors == FACTORS_PER_LOG:
                subtract_logarithms(product, scores)
                n_factors = 0
    subtract_logarithms(product, scores)


@inlined
def _multiply_factors(eta: Floats, scores: Floats, product: Floats) -> None:
    """Subtract log(1 + exp(−η)): max(−η, 0) at once, 1 + exp(−|η|) as a factor."""
    for point in range(len(eta)):
        scores[point] += min(eta[point], 0.0)
        product[point] *= 2.0 + expm1_minus(abs(eta[point]))


@njit(nogil=True, cache=True, error_model="numpy")
def _moments_by_share(shares: Floats, x: Floats, mean: Floats, covariance: Floats) -> None:
    """Compute the mean and covariance of points with these shares."""
    mean[:], covariance[:] = 0.0, 0.0
    for point in range(len(shares)):
        for k in range(len(mean)):
            mean[k] += shares[point] * x[point, k]
    for point in range(len(shares)):
        for k in range(len(mean)):
            for j in range(k + 1):
                gap = (x[point, k] - mean[k]) * (x[point, j] - mean[j])
                covariance[k, j] += shares[point] * gap
    for k in range(len(mean)):
        for j in range(k):
            covariance[j, k] = covariance[k, j]
