"""Scores of rows of ordered levels under a probit factor model, in two ways.

The model is that of `interval_sites`: u ~ N(0, I), and with s_i = w_iᵀ u, feature i has level c iff
s_i + noise lies between the bounds −b_ic and −b_i,c+1, with noise ~ N(0, 1). By Fisher's identity,
with l and h the bounds of the level in units of the noise, the probability
S_i = Φ(h − s_i) − Φ(l − s_i), and g_i = (φ(l − s_i) − φ(h − s_i)) / S_i,

    ∂ log P / ∂ l = −E[φ(l − s_i) / S_i | x],    ∂ log P / ∂ h = E[φ(h − s_i) / S_i | x],
    ∂ log P / ∂ w_i = E[g_i u | x].

`interval_ep_scores`: by expectation propagation, as in `probit_scores`: the derivatives by bounds
are those of the mass of the interval under the cavity, and derivatives by weights follow from the
sites as in binary rows. A row costs its rounds, which take 28 exponentials per feature each.

`interval_quadrature_scores`: exact, for one or two components, on the lattice of `probit_scores`. A
row costs about 100 n multiplications per point, after its rounds.

The value of a continuous feature is an interval of width 0, of which the density counts instead of
the mass: log P is a log density, and ∂ log P / ∂ b_i = E[v_i − s_i | x] for a value b_i + v_i.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.logistic.logistic_lanes import exp_minus
from pipeline.numerics.probit.interval_sites import (
    LOG_SHARE,
    LOWER,
    N_INTERVAL_FIELDS,
    UPPER,
    IntervalRows,
    fill_interval_skewness_terms,
    find_interval_fixed_point,
    make_interval_rows,
)
from pipeline.numerics.probit.probit_scores import (
    DENSITY_AT_0,
    MAX_COMPONENTS,
    RADIUS,
    STEP,
    ProbitScores,
    SquareLattice,
    find_hazard,
    make_lattice,
    normalise_weights,
    place_points,
)
from pipeline.numerics.probit.probit_sites import (
    CAVITY_MEAN,
    CAVITY_VARIANCE,
    MEAN,
    PRECISION,
    SHIFT,
    SITE_KERNEL_OPTIONS,
    Floats,
    ProbitRow,
    allocate_workspace,
    combine_rows,
    dot,
    integrate_sites,
    log_gaussian_scale,
    site_callee,
    tail_coefficients,
)

_FAR = 1e8  # instead of infinite bounds, of which differences are not numbers
_LEAST = 1e-300
_LOG_DENSITY_AT_0 = math.log(DENSITY_AT_0)


def interval_ep_scores(
    levels: NDArray[np.uint8],
    weights: Floats,
    offsets: Floats,
    n_levels: NDArray[np.int64],
    observed: NDArray[Any] | None = None,
    values: Floats | None = None,
) -> ProbitScores:
    """Compute scores by expectation propagation.

    Parameters
    ----------
    levels, weights, offsets, n_levels, observed, values
        As for `interval_codes`.

    Returns
    -------
    ProbitScores
        `offsets` has a column for each plane, then one for each continuous feature. `error` is the
        size of the skewness correction of `expectation_propagation`.
    """
    rows = make_interval_rows(levels, weights, offsets, n_levels, observed, values)
    return _score_rows(rows, _fill_ep_scores)


def interval_quadrature_scores(
    levels: NDArray[np.uint8],
    weights: Floats,
    offsets: Floats,
    n_levels: NDArray[np.int64],
    observed: NDArray[Any] | None = None,
    values: Floats | None = None,
    *,
    step: float = STEP,
    radius: float = RADIUS,
) -> ProbitScores:
    """Compute the scores of at most `MAX_COMPONENTS` components by quadrature.

    Parameters
    ----------
    levels, weights, offsets, n_levels, observed, values
        As for `interval_codes`.
    step, radius
        As for `quadrature_scores`.

    Returns
    -------
    ProbitScores
        As of `quadrature_scores`; `offsets` has the columns of `interval_ep_scores`.
    """
    rows = make_interval_rows(levels, weights, offsets, n_levels, observed, values)
    n_components = len(rows.weights)
    if n_components > MAX_COMPONENTS:
        raise FitError(
            f"Quadrature takes at most {MAX_COMPONENTS} components, but there are {n_components}. "
            "Use expectation propagation."
        )
    lattice = make_lattice(n_components, step, radius)
    return _score_rows(rows, _fill_quadrature_scores, lattice, tail_coefficients())


def _score_rows(rows: IntervalRows, fill: Callable[..., None], *arguments: Any) -> ProbitScores:
    """Return the scores that a kernel fills; its derivatives by bounds become those by offsets."""
    n_samples, n_bounds = len(rows.levels), len(rows.bounds)
    K, n_features = rows.weights.shape
    scores = ProbitScores(
        np.empty(n_samples),
        np.empty(n_samples),
        np.zeros((n_samples, n_bounds + rows.values.shape[1])),
        np.zeros((n_samples, n_features, K)),
        np.empty(n_samples, np.bool_),
    )
    fill(rows, *arguments, scores)
    is_offset = np.ones(scores.offsets.shape[1], np.bool_)
    is_offset[:n_bounds] = np.isfinite(rows.bounds)
    return scores._replace(offsets=-scores.offsets[:, is_offset])


@njit(**SITE_KERNEL_OPTIONS, cache=True)
def _fill_ep_scores(rows: IntervalRows, scores: ProbitScores) -> None:
    K, n_features = rows.weights.shape
    square, tensor = np.empty((K, K)), np.empty((K, K * (K + 1) // 2))
    features = np.empty(n_features, np.int64)
    row = allocate_workspace(K, n_features, N_INTERVAL_FIELDS)
    for sample in range(len(rows.levels)):
        row, scores.settled[sample] = find_interval_fixed_point(rows, sample, row, features)
        log_scales = 0.0
        for i in range(row.sites.shape[1]):
            log_scales += row.sites[LOG_SHARE, i] + log_gaussian_scale(row.sites, i)
        scores.log_likelihood[sample] = integrate_sites(row, log_scales)
        _fill_ep_derivatives(
            rows, sample, row, features, scores.offsets[sample], scores.weights[sample]
        )
        scores.error[sample] = abs(fill_interval_skewness_terms(row, tensor, square))


@site_callee
def _fill_ep_derivatives(
    rows: IntervalRows,
    sample: int,
    row: ProbitRow,
    features: NDArray[np.int64],
    by_bound: Floats,
    by_weight: Floats,
) -> None:
    """Write the derivatives of a row by bounds and weights."""
    sites, image = row.sites, np.empty(row.sites.shape[1])
    pulls = np.empty(len(image))
    for i in range(len(image)):
        pulls[i] = sites[SHIFT, i] - sites[PRECISION, i] * sites[MEAN, i]
        place = _find_place(rows, sample, features[i])
        if place < len(rows.bounds):
            by_bound[place] = -_find_edge_density(sites, i, sites[LOWER, i])
            by_bound[place + 1] = _find_edge_density(sites, i, sites[UPPER, i])
        else:
            by_bound[place] = -pulls[i]
    for k in range(len(row.mean)):
        combine_rows(row.factor[k, k:], row.directions[k:], image)  # V w_i
        for i in range(len(image)):
            by_weight[features[i], k] = pulls[i] * row.mean[k] - sites[PRECISION, i] * image[i]


@site_callee
def _find_place(rows: IntervalRows, sample: int, feature: int) -> int:
    """Return the index of the lower bound of a feature's level; values follow the bounds."""
    n_ordinal = rows.levels.shape[1]
    place: int = len(rows.bounds) + feature - n_ordinal
    if feature < n_ordinal:
        place = rows.first[feature] + rows.levels[sample, feature]
    return place


@site_callee
def _find_edge_density(sites: Floats, i: int, bound: float) -> float:
    """Return the density of the truncated cavity of site i at a bound."""
    spread = 1.0 + sites[CAVITY_VARIANCE, i]
    distance = bound - sites[CAVITY_MEAN, i]
    log_density = _LOG_DENSITY_AT_0 - 0.5 * (distance * distance / spread + math.log(spread))
    return math.exp(log_density - sites[LOG_SHARE, i])


class _LatticeRow(NamedTuple):
    """Arrays of one row with one column per point.

    u is (K, n_points), the densities at the two bounds over the mass are (n, n_points), and the
    others are (n_points,).
    """

    u: Floats
    location: Floats
    log_weight: Floats
    lower: Floats
    upper: Floats


@njit(**SITE_KERNEL_OPTIONS, cache=True)
def _fill_quadrature_scores(
    rows: IntervalRows, lattice: SquareLattice, tail: Floats, scores: ProbitScores
) -> None:
    K, n_features = rows.weights.shape
    n_points = lattice.points.shape[1]
    features = np.empty(n_features, np.int64)
    row = allocate_workspace(K, n_features, N_INTERVAL_FIELDS)
    memory = _LatticeRow(
        np.empty((K, n_points)),
        np.empty(n_points),
        np.empty(n_points),
        np.empty((n_features, n_points)),
        np.empty((n_features, n_points)),
    )
    for sample in range(len(rows.levels)):
        row, scores.settled[sample] = find_interval_fixed_point(rows, sample, row, features)
        log_volume = place_points(row, lattice, memory.u, memory.log_weight)
        for i in range(row.sites.shape[1]):
            _add_log_masses(row, i, tail, memory)
        total, error = normalise_weights(memory.log_weight, lattice)
        scores.log_likelihood[sample], scores.error[sample] = log_volume + total, error
        for i in range(row.sites.shape[1]):
            place = _find_place(rows, sample, features[i])
            scores.offsets[sample, place] = -dot(memory.lower[i], memory.log_weight)
            if place < len(rows.bounds):
                scores.offsets[sample, place + 1] = dot(memory.upper[i], memory.log_weight)
            _average_by_weight(memory, i, scores.weights[sample, features[i]])


@site_callee
def _add_log_masses(row: ProbitRow, i: int, tail: Floats, memory: _LatticeRow) -> None:
    """Add the log masses of interval i to the log weights, and write the densities at its bounds.

    A value has its log density instead, of which `lower` gets the derivative.
    """
    location, is_value = memory.location, row.sites[LOWER, i] == row.sites[UPPER, i]
    lower, upper = memory.lower[i], memory.upper[i]
    bounds = max(row.sites[LOWER, i], -_FAR), min(row.sites[UPPER, i], _FAR)
    location[:] = 0.0
    for k in range(len(memory.u)):
        for s in range(len(location)):
            location[s] += row.weights[k, i] * memory.u[k, s]
    if is_value:
        for s in range(len(location)):
            distance = bounds[0] - location[s]
            memory.log_weight[s] += _LOG_DENSITY_AT_0 - 0.5 * distance * distance
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
        beyond = decay / find_hazard(far, tail)
        tail_mass = 1.0 / find_hazard(abs(near), tail)
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
def _average_by_weight(memory: _LatticeRow, i: int, by_weight: Floats) -> None:
    """Write the mean derivatives by the weights of interval i, given the shares of the points."""
    lower, upper, shares = memory.lower[i], memory.upper[i], memory.log_weight
    for s in range(len(shares)):
        lower[s] = (lower[s] - upper[s]) * shares[s]
    for k in range(len(memory.u)):
        by_weight[k] = dot(lower, memory.u[k])
