"""Scores of rows under a probit factor model: log P(x) and its derivatives, in three ways.

The model is that of `probit_sites`: u ~ N(0, I), and feature i is at level c iff s_i + noise, with
s_i = w_iᵀ u, lies between the bounds l and h of the level. With the probability S_i = Φ(h − s_i) −
Φ(l − s_i) and g_i = (φ(l − s_i) − φ(h − s_i)) / S_i, Fisher's identity gives

    ∂ log P / ∂ l = −E[φ(l − s_i) / S_i | x],    ∂ log P / ∂ h = E[φ(h − s_i) / S_i | x],
    ∂ log P / ∂ w_i = E[g_i u | x].

A level with one bound, as any of a binary feature, has ∂ log P / ∂ b_i = E[g_i | x]. The value
b_i + v_i of a continuous feature is an interval of width 0, of which the density counts instead of
the mass: log P is a log density, and ∂ log P / ∂ b_i = E[v_i − s_i | x].

`ep_scores`: by expectation propagation. At its fixed point, log P(x) by the sites does not change
with the sites to first order (Minka 2001; Seeger 2005, Expectation propagation for exponential
families), so that only the sites themselves are differentiated: with the posterior's mean m and
covariance V, and the site exp(ν s − τ s² / 2) at s = w_iᵀ u,

    ∂ log P / ∂ b_i = ν_i − τ_i w_iᵀ m,    ∂ log P / ∂ w_i = (∂ log P / ∂ b_i) m − τ_i V w_i.

Derivatives by the bounds of features with intervals are those of the level's mass under the cavity,
which are the same at the fixed point. A row costs its rounds of expectation propagation, and n K²
operations more.

`quadrature_scores`: exact, for one or two components. The integral over u is a sum over a square
lattice, in coordinates in which the posterior by expectation propagation is N(0, I): step ½,
radius 7. A trapezoidal rule is exact up to terms that fall like exp(−2 (π s / step)²), where s is
the width of the narrowest factor, and needs fewer points than Gauss's rules. For sources as in
Hyttinen et al. (2022), 613 points were as exact as the 1,024 of a product of Gauss–Hermite rules,
1e-6 nats per row. For three times those weights, where posteriors are almost cut off, they were
more exact: 1e-4 against 3e-4. A row costs 30 n multiplications per point, 100 n for intervals,
after its rounds of expectation propagation.

`orthant_scores`: exact, for up to 20 binary features. x_i = 1 iff e_i > −b_i, where e ~ N(0, C) and
C = I + W Wᵀ, so that P(x) is an orthant probability, see `orthant`. By Fisher's identity (Louis
1982, Finding the observed information matrix when using the EM algorithm) its derivatives are
moments of e given x: with r = C⁻¹ e,

    ∂ log P / ∂b = E[r | x],    ∂ log P / ∂W = (E[r rᵀ | x] − C⁻¹) W.

The weighted draws that estimate P estimate these moments too; within their errors they are the
derivatives of the estimate of log P. Unobserved features are left out of C and have derivative 0.
Derivatives by weights have larger errors than log P, about 5 times in the worst entry of a row.
With the fewest points, sums over 1,000 rows drawn from models with weights up to 5.6 were off by
0.1 standard deviations of such sums at 6 features and 6 components, by 0.15 at 10 and 10, and by up
to a half in the worst entry; log P by 3e-4 nats per row. Along the lengths of steep weights, which
have almost no effect, the error is a tenth as large because an identity is enforced. The cost per
distinct row is 0.2 ms at 6 features, 0.35 ms at 10 and 0.7 ms at 20.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import FitError
from pipeline.numerics.information import check_weights
from pipeline.numerics.logistic.logistic_lanes import exp_minus
from pipeline.numerics.probit.expectation_propagation import fill_skewness_terms
from pipeline.numerics.probit.orthant import (
    MAX_FEATURES,
    check_normal,
    check_tolerances,
    find_distinct_signs,
    integrate_orthant,
    make_orthant_sampler,
    mirror_normal,
)
from pipeline.numerics.probit.probit_sites import (
    CAVITY_MEAN,
    CAVITY_VARIANCE,
    DENSITY_AT_0,
    LOG_DENSITY_AT_0,
    LOG_SHARE,
    LOWER,
    MEAN,
    PRECISION,
    SHIFT,
    SITE_KERNEL_OPTIONS,
    SLOPE,
    TAIL_DEGREE,
    UPPER,
    Floats,
    Integers,
    ProbitRow,
    ProbitRows,
    allocate_workspace,
    combine_rows,
    dot,
    find_fixed_point,
    find_place,
    find_sign,
    integrate_sites,
    make_rows,
    site_callee,
)
from pipeline.random import RowRandom

MAX_COMPONENTS = 2
_FACTORS = 8  # number multiplied before taking a logarithm; none is below 1e-38
_FAR = 1e8  # instead of infinite bounds, of which differences are not numbers
_LEAST = 1e-300
# Orthant derivatives have larger errors than log P. More points with fewer shifts help more.
_N_SHIFTS = 6
_MIN_POINTS = 128


class ProbitScores(NamedTuple):
    """Log P(x) of every row and its derivatives, which are 0 where a value is missing."""

    log_likelihood: Floats  # nats, (n_samples,)
    error: Floats  # estimated error of each, (n_samples,)
    # ∂ log P / ∂ b of planes, then of continuous features, (n_samples, n_planes + n_continuous).
    offsets: Floats
    weights: Floats  # ∂ log P / ∂ w_i, (n_samples, n_features, n_components)
    settled: NDArray[np.bool_]  # false if the approximation did not converge, (n_samples,)
    sampled: bool = False  # whether errors are random, so that errors of distinct rows average out


def ep_scores(
    levels: ArrayLike,
    weights: ArrayLike,
    offsets: ArrayLike,
    observed: ArrayLike | None = None,
    n_levels: Integers | None = None,
    values: Floats | None = None,
    *,
    tol: float | None = None,
) -> ProbitScores:
    """Compute scores by expectation propagation.

    Parameters
    ----------
    levels, weights, offsets, observed, n_levels, values
        As for `probit_posterior`.
    tol
        Largest change of a moment of u in the last round; None takes 1e-4 if all features are
        binary, else 1e-5. The derivatives have an error of about that size.

    Returns
    -------
    ProbitScores
        `error` is the size of the skewness correction of `expectation_propagation`.
    """
    rows = make_rows(levels, weights, offsets, observed, n_levels, values, tol=tol)
    scores = _empty_scores(rows)
    _fill_ep_scores(rows, scores)
    return scores


def _empty_scores(rows: ProbitRows) -> ProbitScores:
    """Allocate the scores of rows."""
    n_samples, (K, n_features) = len(rows.levels), rows.weights.shape
    return ProbitScores(
        np.empty(n_samples),
        np.empty(n_samples),
        np.zeros((n_samples, len(rows.offsets) + rows.values.shape[1])),
        np.zeros((n_samples, n_features, K)),
        np.empty(n_samples, np.bool_),
    )


@njit(**SITE_KERNEL_OPTIONS, cache=True)
def _fill_ep_scores(rows: ProbitRows, scores: ProbitScores) -> None:
    K, n_features = rows.weights.shape
    square, tensor = np.empty((K, K)), np.empty((K, K * (K + 1) // 2))
    features, row = np.empty(n_features, np.int64), allocate_workspace(K, n_features)
    for sample in range(len(rows.levels)):
        row, _, change = find_fixed_point(rows, sample, row, square, features)
        scores.settled[sample] = change < rows.tol
        scores.log_likelihood[sample] = integrate_sites(row)
        _fill_derivatives(
            rows, sample, row, features, scores.offsets[sample], scores.weights[sample]
        )
        scores.error[sample] = abs(fill_skewness_terms(row, tensor, square))


@site_callee
def _fill_derivatives(
    rows: ProbitRows,
    sample: int,
    row: ProbitRow,
    features: Integers,
    by_offset: Floats,
    by_weight: Floats,
) -> None:
    """Write the derivatives of a row, with the signs of the unmirrored features."""
    sites, image = row.sites, np.empty(row.sites.shape[1])
    pulls, signs = np.empty(len(image)), np.ones(len(image))
    for i in range(len(image)):
        pulls[i] = sites[SHIFT, i] - sites[PRECISION, i] * sites[MEAN, i]
        place = find_place(rows, sample, features[i])
        if i < row.n_tails:
            signs[i] = find_sign(rows, sample, features[i])
            by_offset[place] = signs[i] * pulls[i]
            if rows.n_levels[features[i]] > 2:
                edge = sites[SLOPE, i] / math.sqrt(1.0 + sites[CAVITY_VARIANCE, i])
                by_offset[place] = signs[i] * edge
        elif rows.n_levels[features[i]] > 1:
            by_offset[place] = _find_edge_density(sites, i, sites[LOWER, i])
            by_offset[place + 1] = -_find_edge_density(sites, i, sites[UPPER, i])
        else:
            by_offset[place] = pulls[i]
    for k in range(len(row.mean)):
        combine_rows(row.factor[k, k:], row.directions[k:], image)  # V w_i
        for i in range(len(image)):
            drop = sites[PRECISION, i] * image[i]
            by_weight[features[i], k] = signs[i] * (pulls[i] * row.mean[k] - drop)


@site_callee
def _find_edge_density(sites: Floats, i: int, bound: float) -> float:
    """Return the density of the truncated cavity of site i at a bound."""
    spread = 1.0 + sites[CAVITY_VARIANCE, i]
    distance = bound - sites[CAVITY_MEAN, i]
    log_density = LOG_DENSITY_AT_0 - 0.5 * (distance * distance / spread + math.log(spread))
    return math.exp(log_density - sites[LOG_SHARE, i])


class SquareLattice(NamedTuple):
    """Points, (K, n_points), the log of their volume, and which points are black or outermost.

    Black points are every other one, like the squares of a chessboard.
    """

    points: Floats
    log_volume: float
    black: NDArray[np.bool_]
    outmost: NDArray[np.bool_]


class _LatticeRow(NamedTuple):
    """Arrays of one row with one column per point.

    u is (K, n_points); the densities at the lower and upper bound over the mass, (n, n_points), are
    g and unused in tails; the others are (n_points,).
    """

    u: Floats
    z: Floats
    log_weight: Floats
    product: Floats
    lower: Floats
    upper: Floats


def quadrature_scores(
    levels: ArrayLike,
    weights: ArrayLike,
    offsets: ArrayLike,
    observed: ArrayLike | None = None,
    n_levels: Integers | None = None,
    values: Floats | None = None,
    *,
    step: float = 0.5,
    radius: float = 7.0,
) -> ProbitScores:
    """Compute the scores of at most `MAX_COMPONENTS` components by quadrature.

    Parameters
    ----------
    levels, weights, offsets, observed, n_levels, values
        As for `probit_posterior`.
    step, radius
        Step and radius of the lattice, in standard deviations of the posterior.

    Returns
    -------
    ProbitScores
        `error` is half of the difference between the two halves of the lattice, far above the error
        of the whole, plus the share of its outermost points, about the mass beyond them. `settled`
        is false if expectation propagation did not converge: the lattice may then miss the
        posterior.
    """
    rows = make_rows(levels, weights, offsets, observed, n_levels, values, tol=None)
    if len(rows.weights) > MAX_COMPONENTS:
        raise FitError(
            f"Quadrature takes at most {MAX_COMPONENTS} components, but there are "
            f"{len(rows.weights)}. Use expectation propagation, or orthant probabilities."
        )
    scores = _empty_scores(rows)
    _fill_quadrature_scores(rows, _make_lattice(len(rows.weights), step, radius), scores)
    return scores


def _make_lattice(n_components: int, step: float, radius: float) -> SquareLattice:
    """Make the points of a square lattice within a radius."""
    n = int(radius / step)
    grid = np.stack(np.meshgrid(*[np.arange(-n, n + 1)] * n_components), axis=-1)
    indices = grid.reshape(-1, n_components)
    distances = step * np.linalg.norm(indices, axis=1)
    indices, distances = indices[distances <= radius], distances[distances <= radius]
    # The prior's density is (2 π)^(−K / 2) exp(−u² / 2).
    log_volume = n_components * math.log(step / math.sqrt(2 * math.pi))
    black = indices.sum(axis=1) % 2 == 0
    points = np.ascontiguousarray(step * indices.T)
    return SquareLattice(points, log_volume, black, distances > radius - 1)


@njit(**SITE_KERNEL_OPTIONS, cache=True)
def _fill_quadrature_scores(rows: ProbitRows, lattice: SquareLattice, scores: ProbitScores) -> None:
    K, n_features = rows.weights.shape
    n_points = lattice.points.shape[1]
    features, row = np.empty(n_features, np.int64), allocate_workspace(K, n_features)
    square = np.empty((K, K))
    memory = _LatticeRow(
        np.empty((K, n_points)),
        np.empty(n_points),
        np.empty(n_points),
        np.empty(n_points),
        np.empty((n_features, n_points)),
        np.empty((n_features, n_points)),
    )
    for sample in range(len(rows.levels)):
        row, _, change = find_fixed_point(rows, sample, row, square, features)
        scores.settled[sample] = change < rows.tol
        log_volume = _place_points(row, lattice, memory.u, memory.log_weight)
        _multiply_tails(row, rows.tail, memory)
        for i in range(row.n_tails, row.sites.shape[1]):
            _add_log_masses(row, i, rows.tail, memory)
        total, error = _normalise_weights(memory.log_weight, lattice)
        scores.log_likelihood[sample], scores.error[sample] = log_volume + total, error
        _average_scores(
            rows, sample, row, features, memory, scores.offsets[sample], scores.weights[sample]
        )


@site_callee
def _place_points(
    row: ProbitRow, lattice: SquareLattice, points: Floats, log_weight: Floats
) -> float:
    """Move the points to the posterior, weigh them by the prior, return the log of their volume."""
    log_volume = lattice.log_volume
    log_weight[:] = 0.0
    for k in range(len(row.mean)):
        u = points[k]
        log_volume += math.log(row.factor[k, k])
        for s in range(len(u)):
            u[s] = row.mean[k]
        for j in range(k, len(row.mean)):
            for s in range(len(u)):
                u[s] += row.factor[k, j] * lattice.points[j, s]
        for s in range(len(u)):
            log_weight[s] -= 0.5 * u[s] * u[s]
    return log_volume


@site_callee
def _multiply_tails(row: ProbitRow, tail: Floats, memory: _LatticeRow) -> None:
    """Add the logs of the factors of all tails to the weights, and write g of each."""
    z, product = memory.z, memory.product
    product[:] = 1.0
    for i in range(row.n_tails):
        _project_points(row, i, -row.sites[LOWER, i], memory)
        _multiply_factor(z, tail, memory.lower[i], product, memory.log_weight)
        if i % _FACTORS == _FACTORS - 1 or i == row.n_tails - 1:
            for s in range(len(z)):
                memory.log_weight[s] += math.log(product[s])
                product[s] = 1.0


@site_callee
def _project_points(row: ProbitRow, i: int, offset: float, memory: _LatticeRow) -> None:
    """Write w_iᵀ u plus an offset into z."""
    z = memory.z
    for s in range(len(z)):
        z[s] = offset
    for k in range(len(memory.u)):
        for s in range(len(z)):
            z[s] += row.weights[k, i] * memory.u[k, s]


@site_callee
def _multiply_factor(
    z: Floats, tail: Floats, slope: Floats, product: Floats, log_weight: Floats
) -> None:
    """Multiply by Φ(z), set slope = φ(z) / Φ(z); for z < 0, exp(−z² / 2) goes to the log weight."""
    for s in range(len(z)):
        size = abs(z[s])
        hazard = _find_hazard(size, tail)
        quarter = 0.5 * size * size
        density = DENSITY_AT_0 * exp_minus(quarter)
        above = 1.0 - density / hazard  # Φ(size)
        is_positive = z[s] > 0.0
        slope[s] = density / above if is_positive else hazard
        product[s] *= above if is_positive else DENSITY_AT_0 / hazard
        log_weight[s] -= 0.0 if is_positive else quarter


@site_callee
def _find_hazard(size: float, tail: Floats) -> float:
    """Return φ(size) / Φ(−size) for a size of at least 0."""
    ratio = (size - 4.0) / (size + 4.0)
    excess = tail[TAIL_DEGREE]
    for power in range(TAIL_DEGREE - 1, -1, -1):  # constant bounds, so that it is unrolled
        excess = excess * ratio + tail[power]
    hazard: float = size + excess / (size + 1.25)
    return hazard


@site_callee
def _add_log_masses(row: ProbitRow, i: int, tail: Floats, memory: _LatticeRow) -> None:
    """Add the log masses of interval i to the log weights, and write the densities at its bounds.

    A value has its log density instead, of which `lower` gets the derivative.
    """
    location, is_value = memory.z, row.sites[LOWER, i] == row.sites[UPPER, i]
    lower, upper = memory.lower[i], memory.upper[i]
    bounds = max(row.sites[LOWER, i], -_FAR), min(row.sites[UPPER, i], _FAR)
    _project_points(row, i, 0.0, memory)
    if is_value:
        for s in range(len(location)):
            distance = bounds[0] - location[s]
            memory.log_weight[s] += LOG_DENSITY_AT_0 - 0.5 * distance * distance
            lower[s], upper[s] = distance, 0.0
        return
    mass = location  # in place, because a location is read just before
    for s in range(len(location)):
        low, high = bounds[0] - location[s], bounds[1] - location[s]
        is_mirrored = low + high < 0.0
        near, far = (-high, -low) if is_mirrored else (low, high)
        # In the tail, all in units of the density at `near`, so that nothing underflows.
        is_tail = near > 0.0
        half_square = 0.5 * near * near
        density = DENSITY_AT_0 * exp_minus(half_square)
        decay = exp_minus(0.5 * (far - near) * (far + near))
        beyond = decay / _find_hazard(far, tail)
        tail_mass = 1.0 / _find_hazard(abs(near), tail)
        at_near = 1.0 if is_tail else density
        share = tail_mass - beyond if is_tail else 1.0 - density * (tail_mass + beyond)
        share = share if share > _LEAST else _LEAST
        at_near /= share
        mass[s] = DENSITY_AT_0 * share if is_tail else share
        memory.log_weight[s] -= half_square if is_tail else 0.0
        at_far = at_near * decay
        lower[s] = at_far if is_mirrored else at_near
        upper[s] = at_near if is_mirrored else at_far
    for s in range(len(location)):
        memory.log_weight[s] += math.log(mass[s])


@site_callee
def _normalise_weights(log_weight: Floats, lattice: SquareLattice) -> tuple[float, float]:
    """Turn log weights into shares; return the log of their sum and an estimate of its error."""
    top = log_weight.max()
    total = black = outmost = 0.0
    for s in range(len(log_weight)):
        weight = math.exp(log_weight[s] - top)
        log_weight[s] = weight
        total += weight
        black += weight if lattice.black[s] else 0.0
        outmost += weight if lattice.outmost[s] else 0.0
    for s in range(len(log_weight)):
        log_weight[s] /= total
    return top + math.log(total), abs(black / total - 0.5) + outmost / total


@site_callee
def _average_scores(
    rows: ProbitRows,
    sample: int,
    row: ProbitRow,
    features: Integers,
    memory: _LatticeRow,
    by_offset: Floats,
    by_weight: Floats,
) -> None:
    """Write the mean derivatives, with the signs of the unmirrored features."""
    shares = memory.log_weight
    for i in range(row.sites.shape[1]):
        slope, upper, sign = memory.lower[i], memory.upper[i], 1.0
        place = find_place(rows, sample, features[i])
        for s in range(len(slope)):
            slope[s] *= shares[s]
        by_offset[place] = slope.sum()
        if i < row.n_tails:
            sign = find_sign(rows, sample, features[i])
            by_offset[place] *= sign
        elif rows.n_levels[features[i]] > 1:
            by_offset[place + 1] = -dot(upper, shares)
            for s in range(len(slope)):
                slope[s] -= upper[s] * shares[s]
        for k in range(len(memory.u)):
            by_weight[features[i], k] = sign * dot(slope, memory.u[k])


def orthant_scores(
    X: ArrayLike,
    weights: ArrayLike,
    offsets: ArrayLike,
    observed: ArrayLike | None = None,
    *,
    tol: float = 1e-2,
    max_points: int = 1 << 12,
    seed: int = 0,
) -> ProbitScores:
    """Compute scores from orthant probabilities, for at most `MAX_FEATURES` features.

    The result of a row depends on that row alone. Equal rows are computed once.

    Parameters
    ----------
    X, weights, offsets, observed
        As for `ep_scores`.
    tol
        Standard error of a log probability, in nats, at which to stop.
    max_points
        Maximum number of points for each of the 6 shifts, from 128 to 131072.
    seed
        Seed of the shifts. Each distinct row has its own shifts, so errors average out over rows.

    Returns
    -------
    ProbitScores
        `error` is the standard error of `log_likelihood`, estimated from the shifts. `settled` is
        false if `max_points` was reached while `error` was still above `tol`.
    """
    signs, codes, inverse = find_distinct_signs(X, observed)
    W, b = np.asarray(weights, np.float64), np.asarray(offsets, np.float64)
    check_weights(signs.shape[1], W, b)
    deviations = np.hypot.reduce(W, axis=1, initial=1.0)
    R, t = _noise_correlation(W, deviations), -b / deviations
    check_normal(len(b), R, t)
    check_tolerances(tol, _MIN_POINTS, max_points)
    log_p, error = np.zeros((2, len(signs)))
    by_offsets, by_weights = np.zeros((len(signs), *b.shape)), np.zeros((len(signs), *W.shape))
    for k, shifts in enumerate(_draw_shifts(codes, seed)):
        observed_features = np.flatnonzero(signs[k])
        if len(observed_features):
            normal = mirror_normal(R, t, signs[k], observed_features)
            log_p[k], error[k], r, rr = _integrate_scores(*normal, shifts, tol, max_points)
            units = signs[k, observed_features] / deviations[observed_features]
            by_offsets[k, observed_features] = units * r
            by_weights[k, observed_features] = units[:, None] * (
                rr @ (units[:, None] * W[observed_features])
            )
    return ProbitScores(
        log_likelihood=log_p[inverse],
        error=error[inverse],
        offsets=by_offsets[inverse],
        weights=by_weights[inverse],
        settled=(error <= tol)[inverse],
        sampled=True,
    )


def _noise_correlation(W: Floats, deviations: Floats) -> Floats:
    """Return the correlation of e; the noise contributes 1 to each of its variances."""
    scaled = W / deviations[:, None]
    R: Floats = scaled @ scaled.T + np.diag(deviations**-2)
    return R


def _draw_shifts(codes: NDArray[np.int64], seed: int) -> Floats:
    """Draw the shifts of each row by its code, (n_rows, shifts, features)."""
    draws = RowRandom(seed).uniform(codes, _N_SHIFTS * MAX_FEATURES)
    return draws.reshape(len(codes), _N_SHIFTS, MAX_FEATURES)


@njit(nogil=True, cache=True, error_model="numpy")
def _integrate_scores(
    R: Floats, b: Floats, shifts: Floats, tol: float, max_points: int
) -> tuple[float, float, Floats, Floats]:
    """Return log P(v < b), v ~ N(0, R), its error, E[r] and E[r rᵀ] − R⁻¹ below b, r = R⁻¹ v."""
    n = len(b)
    sampler, columns = make_orthant_sampler(R, b)
    sums = np.empty((n + 1, n + 1))
    log_p, error = integrate_orthant(sampler, shifts, tol, _MIN_POINTS, max_points, sums)
    moments = sums / sums[n, n]
    excess = moments[:n, :n] + moments[:n, :n].T
    for i in range(n):
        excess[i, i] = moments[i, i] - 1.0
    # With v = L z and R = L Lᵀ, r is L⁻ᵀ z.
    inverse = np.linalg.inv(columns)
    r, rr = inverse.T @ moments[n, :n], inverse.T @ excess @ inverse
    # Scaling v_i and b_i together changes nothing: E[r_i v_i] − 1 = b_i E[r_i]. Enforcing this
    # frees the derivatives along the lengths of weights from the errors of the draws.
    for i in range(n):
        rr[i, i] = b[i] * r[i] + rr[i, i] - rr[i] @ R[i]
    return log_p, error, r, rr
