"""The sums of an EM pass on Gauss–Hermite nodes centred at the posterior of each row.

With many items, posteriors are narrow and nearly Gaussian. Nodes shared by all rows then lie too
far apart, while a few nodes x_nl = μ_n + L_n z_l around Laplace's approximation N(μ_n, L_n L_nᵀ)
give nearly exact integrals (adaptive quadrature: J. C. Naylor, A. F. M. Smith, Applied Statistics
31 (1982)):

    P(t_n) ≈ Σ_l u_nl,   u_nl = v_l det L_n exp(½ z_l² − ½ x_nl²) P(t_n | x_nl),

with the weights v_l of the rule. The sums of the M-step are those over nodes with the weights
u_nl / P(t_n).

Rows are processed in short batches, with neighbouring rows in neighbouring lanes. The values t_ni
enter only Σ_i t_ni (w_i, b_i), so the loops over nodes compute σ(w_i·x + b_i) alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.intrinsics import wide_vectors
from pipeline.numerics.logistic.latent_nodes import gauss_hermite
from pipeline.numerics.logistic.logistic_lanes import (
    FACTORS_PER_LOG,
    add_multiple,
    copy,
    exp_minus,
    fill,
    fma,
    inlined,
    subtract_logarithms,
)
from pipeline.numerics.logistic.newton_step import NewtonStatistics

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

CENTRED_NODES_PER_AXIS = {1: (7, 15, 31), 2: (5, 9, 13, 17), 3: (5, 7, 9)}
"""Numbers of nodes per axis from coarse to fine, by the number of components.

With 20 to 150 items, the log-likelihood of 1,000 rows is off by 0.1 to 0.4 nats with 5 nodes per
axis and 2 or 3 components, and by a tenth of that with every 2 more; with 7, 15 and 31 nodes and
one component by up to 0.9, 1e-2 and 1e-5.
"""
_BATCH_ENTRIES = 2**16  # items, rows and nodes: 512 KiB, half of a usual L2 cache
LANES, _MAX_LANES = 8, 64  # multiples of the widest vectors
_MAX_STEPS, _MIN_GAIN = 30, 1e-2  # of Newton's method; nats
_MAX_DISTANCE = 1.0  # of the last step of Newton's method, in standard deviations


class RowLanes(NamedTuple):
    """Rows side by side, padded with rows of weight 0; 0 where a value is missing."""

    n_rows: int
    weights: Floats  # of the rows, (n_lanes,)
    ones: Floats  # t, (n_features, n_lanes)
    mask: Floats  # (n_features, n_lanes)
    rows: slice

    def sum_linear(
        self,
        weights: Floats,
        offsets: Floats,
        row_means: Floats | None,
        row_variances: Floats | None = None,
    ) -> Floats:
        """Return Σ_i t_i (w_i, b_i), and what the priors N(m_n, v_n I) add to it, (q + 1, n_lanes).

        The log density of such a prior is that of N(0, v I) plus (m·x − ½ m·m) / v.
        """
        linear: Floats = np.column_stack([weights, offsets]).T @ self.ones
        if row_means is not None:
            means = row_means[self.rows].T
            v = 1.0 if row_variances is None else row_variances[self.rows]
            linear[:-1, : self.n_rows] += means / v
            linear[-1, : self.n_rows] -= 0.5 * (means**2).sum(axis=0) / v
        return linear

    def invert_variances(self, row_variances: Floats | None) -> Floats:
        """Return the precisions 1 / v_n of the priors N(m_n, v_n I), (n_lanes,)."""
        precisions = np.ones(len(self.weights))
        if row_variances is not None:
            precisions[: self.n_rows] /= row_variances[self.rows]
        return precisions


def centred_e_step(
    X: Bits,
    observed: Bits | None,
    weights: Floats,
    offsets: Floats,
    row_weights: Floats | None = None,
    row_means: Floats | None = None,
    nodes_per_axis: int | None = None,
    row_variances: Floats | None = None,
    row_starts: Floats | None = None,
) -> NewtonStatistics:
    """E-step on nodes centred at each row's posterior.

    Parameters
    ----------
    X
        Values 0 and 1, (n_samples, n_features).
    observed
        Mask of the same shape; None if all values are observed.
    weights, offsets
        w, (n_features, q), for 1 to 3 components, and b, (n_features,).
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    row_means
        Mean of the prior of each row, (n_samples, q); None if all are 0.
    nodes_per_axis
        Number of nodes per axis, by default the smallest of `CENTRED_NODES_PER_AXIS`.
    row_variances
        Variance of the prior of each row along each axis, (n_samples,), with `row_means`; None if
        all are 1.
    row_starts
        Where the search for the mode of each row starts, (n_samples, q); None starts at 0.
    """
    n_features, q = weights.shape
    codes = np.empty((0, 0) if row_means is None else row_means.shape)
    variances = np.empty((0, 0) if row_variances is None else codes.shape)
    own_weights = np.ones(len(X)) if row_weights is None else row_weights
    row_nats = np.empty(len(X))
    z, log_v = gauss_hermite(nodes_per_axis or CENTRED_NODES_PER_AXIS[q][0], q)
    log_v = log_v + 0.5 * (z**2).sum(axis=1)
    gradient = np.zeros((n_features, q + 1))
    curvature = np.zeros((n_features, (q + 1) * (q + 2) // 2))
    moments, log_likelihood = np.zeros((q + 1, q + 1)), 0.0
    j, k = np.triu_indices(q + 1)
    n_lanes = _BATCH_ENTRIES // (len(z) * n_features) // LANES * LANES
    n_lanes = max(min(n_lanes, _MAX_LANES, -(-len(X) // LANES) * LANES), LANES)
    x, log_mass = np.ones((q + 1, len(z), n_lanes)), np.empty((len(z), n_lanes))
    sigma = np.empty((n_features, len(z) * n_lanes))
    slopes = np.empty_like(sigma)
    # The means are one step beyond the modes, unless very steep items keep Newton's method from
    # converging.
    center, root = np.zeros((q, n_lanes)), np.zeros((q, q, n_lanes))
    for batch in iter_row_batches(X, observed, own_weights, n_lanes):
        linear = batch.sum_linear(weights, offsets, row_means, row_variances)
        precisions = batch.invert_variances(row_variances)
        center[:] = 0.0
        if row_starts is not None:
            center[:, : batch.n_rows] = row_starts[batch.rows].T
        newton = (_MAX_STEPS, _MIN_GAIN, _MAX_DISTANCE, center, root)
        fill_laplace(batch.mask, weights, offsets, linear, precisions, *newton)
        np.einsum("dal,na->dnl", root, z, out=x[:q])
        x[:q] += center[:, None]
        flat = x.reshape(q + 1, -1)
        fill_node_curves(batch.mask, weights, offsets, flat[:q], sigma, log_mass.reshape(-1))
        log_mass += (linear[:, None] * x).sum(axis=0) - 0.5 * precisions * (x[:q] ** 2).sum(axis=0)
        diagonal = np.diagonal(root)
        log_mass += log_v[:, None] + np.log(diagonal).sum(axis=1) + 0.5 * q * np.log(precisions)
        largest = log_mass.max(axis=0)
        share = np.exp(log_mass - largest)
        totals = share.sum(axis=0)
        nats = (largest + np.log(totals))[: batch.n_rows]
        row_nats[batch.rows] = nats
        log_likelihood += float((batch.weights[: batch.n_rows] * nats).sum())
        if row_means is not None:
            mean = (share * x[:q]).sum(axis=1) / totals
            codes[batch.rows] = mean[:, : batch.n_rows].T
            if row_variances is not None:
                squares = (share * (x[:q] - mean[:, None]) ** 2).sum(axis=1) / totals
                variances[batch.rows] = squares[:, : batch.n_rows].T
        share *= batch.weights / totals
        weigh_node_curves(share.reshape(-1), sigma, slopes)
        gradient += batch.ones @ (share * x).sum(axis=1).T
        gradient -= sigma @ flat.T
        products = flat[j] * flat[k]
        curvature += slopes @ products.T
        total = products @ share.reshape(-1)
        moments[j, k] += total
    moments[k, j] = moments[j, k]
    sums = gradient, curvature, moments, log_likelihood, 0
    return NewtonStatistics(*sums, codes, variances, row_nats)


def iter_row_batches(
    X: Bits, observed: Bits | None, row_weights: Floats, n_lanes: int
) -> Iterator[RowLanes]:
    """Yield rows in batches of `n_lanes`."""
    for start in range(0, len(X), n_lanes):
        check_cancelled()
        rows = slice(start, min(start + n_lanes, len(X)))
        n_rows = rows.stop - start
        ones, mask = np.zeros((2, X.shape[1], n_lanes))
        ones[:, :n_rows] = X[rows].T
        mask[:, :n_rows] = 1.0 if observed is None else observed[rows].T
        ones *= mask
        yield RowLanes(n_rows, np.pad(row_weights[rows], (0, n_lanes - n_rows)), ones, mask, rows)


@njit(nogil=True, cache=True, error_model="numpy")
def fill_laplace(
    mask: Floats,
    weights: Floats,
    offsets: Floats,
    linear: Floats,
    precisions: Floats,
    max_steps: int,
    min_gain: float,
    max_distance: float,
    mean: Floats,
    root: Floats,
) -> None:
    """Compute the mean, (q, n_lanes), and a root of the covariance, (q, q, n_lanes).

    `linear` is Σ_i t_i (w_i, b_i), (q + 1, n_lanes), and `precisions` are those of the priors along
    each axis, (n_lanes,). Newton's method starts at `mean`, and stops where a step gains less than
    `min_gain` nats. The mean is one step beyond, if that is shorter than `max_distance`.
    """
    wide_vectors()
    q, n_lanes = mean.shape
    trial, step = np.zeros((q, n_lanes)), np.zeros((q, n_lanes))
    slope, precision = np.empty((q, n_lanes)), np.empty((q, q, n_lanes))
    lower, newton = np.zeros((q, q)), np.empty(q)
    value, gain = np.full(n_lanes, -np.inf), np.full(n_lanes, np.inf)
    reached, product, eta, excess = np.empty((4, n_lanes))
    mode = mean.copy()
    for _ in range(max_steps):
        for d in range(q):
            for lane in range(n_lanes):
                trial[d, lane] = mode[d, lane] + step[d, lane]
        _fill_derivatives(
            mask,
            weights,
            offsets,
            trial,
            precisions,
            slope,
            precision,
            reached,
            product,
            eta,
            excess,
        )
        is_active = False
        for lane in range(n_lanes):
            if gain[lane] < min_gain:
                continue
            total = reached[lane] + linear[q, lane]
            for d in range(q):
                prior = precisions[lane] * trial[d, lane]
                total += trial[d, lane] * (linear[d, lane] - 0.5 * prior)
            if total >= value[lane]:
                value[lane] = total
                for d in range(q):
                    mode[d, lane] = trial[d, lane]
                    prior = precisions[lane] * trial[d, lane]
                    newton[d] = slope[d, lane] + linear[d, lane] - prior
                gain[lane] = _solve_lane(precision, lane, lower, newton)
                for d in range(q):
                    step[d, lane] = newton[d]
                is_near = gain[lane] < max_distance**2
                for d in range(q):
                    mean[d, lane] = mode[d, lane] + (newton[d] if is_near else 0.0)
                _invert_factor(lower, root, lane)
            else:
                gain[lane] *= 0.5
                for d in range(q):
                    step[d, lane] *= 0.5
            is_active |= gain[lane] >= min_gain
        if not is_active:
            break


@inlined
def _fill_derivatives(
    mask: Floats,
    weights: Floats,
    offsets: Floats,
    x: Floats,
    precisions: Floats,
    slope: Floats,
    precision: Floats,
    reached: Floats,
    product: Floats,
    eta: Floats,
    excess: Floats,
) -> None:
    """Compute −Σ_i log(1 + exp(η_i)), its gradient, and the prior's minus its Hessian."""
    q = len(x)
    fill(reached, 0.0)
    fill(product, 1.0)
    for d in range(q):
        fill(slope[d], 0.0)
        for a in range(d + 1):
            fill(precision[d, a], 0.0)
        copy(precisions, precision[d, d])
    for i in range(len(weights)):
        fill(eta, offsets[i])
        for d in range(q):
            add_multiple(weights[i, d], x[d], eta)
        _fill_curve(mask[i], eta, excess, reached, product)
        for d in range(q):
            add_multiple(-weights[i, d], eta, slope[d])
            for a in range(d + 1):
                add_multiple(weights[i, d] * weights[i, a], excess, precision[d, a])
        if i % FACTORS_PER_LOG == FACTORS_PER_LOG - 1 or i == len(weights) - 1:
            subtract_logarithms(product, reached)


@inlined
def _fill_curve(
    mask: Floats, eta: Floats, slopes: Floats, reached: Floats, product: Floats
) -> None:
    """Replace η by σ(η), compute σ (1 − σ), and multiply the factors of 1 + exp(η)."""
    for lane in range(len(eta)):
        present = mask[lane]
        e = exp_minus(abs(eta[lane]))
        inverse = 1.0 / (1.0 + e)
        reached[lane] -= present * max(eta[lane], 0.0)
        product[lane] *= fma(present, e, 1.0)
        eta[lane] = present * (inverse if eta[lane] > 0 else e * inverse)
        slopes[lane] = present * e * inverse * inverse


@inlined
def _solve_lane(precision: Floats, lane: int, lower: Floats, vector: Floats) -> float:
    """Factorize a lane's precision, solve in place, and return vectorᵀ precision⁻¹ vector."""
    q = len(vector)
    for d in range(q):
        for a in range(d + 1):
            total = precision[d, a, lane]
            for b in range(a):
                total -= lower[d, b] * lower[a, b]
            lower[d, a] = math.sqrt(total) if a == d else total / lower[a, a]
    gain = 0.0
    for d in range(q):
        for a in range(d):
            vector[d] -= lower[d, a] * vector[a]
        vector[d] /= lower[d, d]
        gain += vector[d] * vector[d]
    for d in range(q - 1, -1, -1):
        for a in range(d + 1, q):
            vector[d] -= lower[a, d] * vector[a]
        vector[d] /= lower[d, d]
    return gain


@inlined
def _invert_factor(lower: Floats, root: Floats, lane: int) -> None:
    """Store the transposed inverse of a lower triangle, a root of the covariance."""
    q = len(lower)
    for d in range(q):
        root[d, d, lane] = 1.0 / lower[d, d]
        for a in range(d + 1, q):
            total = 0.0
            for b in range(d, a):
                total -= lower[a, b] * root[d, b, lane]
            root[d, a, lane] = total / lower[a, a]


@njit(nogil=True, cache=True, error_model="numpy")
def fill_node_curves(
    mask: Floats, weights: Floats, offsets: Floats, points: Floats, sigma: Floats, reached: Floats
) -> None:
    """Compute σ(η_i), (n_features, n_points), and −Σ_i log(1 + exp(η_i)) at points, (q, n_points).

    Each lane of the mask, (n_features, n_lanes), belongs to every n_lanes-th point.
    """
    wide_vectors()
    n_points, n_lanes = len(reached), mask.shape[1]
    product, present = np.ones(n_points), np.empty(n_points)
    fill(reached, 0.0)
    for i in range(len(weights)):
        for start in range(0, n_points, n_lanes):
            for lane in range(n_lanes):
                present[start + lane] = mask[i, lane]
        eta = sigma[i]
        fill(eta, offsets[i])
        for d in range(len(points)):
            add_multiple(weights[i, d], points[d], eta)
        _fill_node_curve(present, eta, reached, product)
        if i % FACTORS_PER_LOG == FACTORS_PER_LOG - 1 or i == len(weights) - 1:
            subtract_logarithms(product, reached)


@inlined
def _fill_node_curve(mask: Floats, eta: Floats, reached: Floats, product: Floats) -> None:
    for k in range(len(eta)):
        present = mask[k]
        e = exp_minus(abs(eta[k]))
        inverse = 1.0 / (1.0 + e)
        reached[k] -= present * max(eta[k], 0.0)
        product[k] *= fma(present, e, 1.0)
        eta[k] = present * (inverse if eta[k] > 0 else e * inverse)


@njit(nogil=True, cache=True, error_model="numpy")
def fill_row_curves(
    ones: Floats,
    mask: Floats,
    weights: Floats,
    offsets: Floats,
    points: Floats,
    other: Floats,
    reached: Floats,
) -> None:
    """Compute P(1 − t_i | x), (n_rows, n_features, n_points), and log P(t_n | x) of each row.

    Each row has its own points, (n_rows, q, n_points). Far from 0, P(1 − t_i | x) is exact where
    t_i − σ(η_i) would be rounding, and so is the logarithm.
    """
    for n in range(len(mask)):
        signs = (1.0 - 2.0 * ones[n]).reshape(-1, 1)
        own, forms = mask[n].reshape(-1, 1), signs[:, 0] * offsets
        fill_node_curves(own, signs * weights, forms, points[n], other[n], reached[n])


@njit(nogil=True, cache=True, error_model="numpy")
def weigh_node_curves(share: Floats, sigma: Floats, slopes: Floats) -> None:
    """Multiply σ(η_i) by the share of each node, and compute σ (1 − σ) times the share."""
    wide_vectors()
    for i in range(len(sigma)):
        row, out = sigma[i], slopes[i]
        for k in range(len(row)):
            weighted = share[k] * row[k]
            out[k] = weighted * (1.0 - row[k])
            row[k] = weighted
