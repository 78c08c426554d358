"""Logistic regressions of many features on others, from packed bits.

Several regressions of the same target on the same predictors form a group, such as those for a path
of penalties. Regression r of group g has the log-likelihood Σ_n w_n log P(x_nt | x_nj, j ∈ J), with
logit P(x_nt = 1) = b_0 + Σ_j b_j x_nj. The sums of a pass are the log-likelihoods, their gradients
by all coefficients, and the information about the coefficients that are active.

A step of Newton's method maximises the quadratic approximation of the log-likelihood per row minus
λ Σ_j s_j |b_j| + (ρ / 2) Σ_j s_j² b_j² by coordinate descent (J. Friedman, T. Hastie, R.
Tibshirani, Journal of Statistical Software 33, 2010; there s_j is the standard deviation of x_j,
and λ is alpha lambda). Coefficients that are not active stay 0, until their gradient exceeds their
penalty.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.arrays import Array, Indices, Words
from pipeline.numerics.compilation import callee
from pipeline.numerics.logistic.logistic_lanes import exp_minus

Flags = NDArray[np.bool_]

_TILE = 256  # rows whose bits are unpacked at once
_MAX_SWEEPS = 5000
_SETTLED = 1e-20  # squared change of a coefficient, times its information, that ends the descent
_LEAST_INFORMATION = 1e-12
_NEW_GAIN = 1e300
_NEGLIGIBLE = 1e-8  # of a standard deviation, by which a gradient may exceed a penalty

_kernel = njit(nogil=True, cache=True, error_model="numpy")
_callee = callee(nogil=True, error_model="numpy")
_summing = callee(nogil=True, error_model="numpy", fastmath={"reassoc", "nsz", "contract"})


class Regressions(NamedTuple):
    """Regressions in the order of their groups; coefficients of all follow each other.

    Attributes
    ----------
    targets
        The target of each group, (n_groups,).
    starts, columns
        The predictors of group g are `columns[starts[g]:starts[g + 1]]`.
    groups
        The group of each regression, ascending, (n_regressions,).
    places
        Where the coefficients of each regression begin, and how many there are, (n_regressions +
        1,). The intercept is the first.
    values
        Coefficients, (n_coefficients,).
    is_active
        Whether the information about a coefficient is summed, (n_coefficients,).
    is_running
        Whether a regression has not converged, (n_regressions,); the sums of others are 0.
    """

    targets: Indices
    starts: Indices
    columns: Indices
    groups: Indices
    places: Indices
    values: Array
    is_active: Flags
    is_running: Flags

    @property
    def square_places(self) -> Indices:
        """Where the information of each regression begins, (n_regressions + 1,)."""
        n_active = np.add.reduceat(self.is_active, self.places[:-1], dtype=np.int64)
        sizes = np.where(self.is_running, n_active**2, 0)
        return np.concatenate([[0], np.cumsum(sizes)])


class RegressionSums(NamedTuple):
    """Log-likelihoods, (n_regressions,), gradients, (n_coefficients,), and squares of information.

    The information of regression r, about its active coefficients, begins at `square_places[r]`.
    """

    nats: Array
    gradients: Array
    information: Array


def sum_regressions(words: Words, weights: Array, regressions: Regressions) -> RegressionSums:
    """Sum log-likelihoods, gradients and information over rows.

    `words` is (n_features, n_words), see `BinaryBlock`, and `weights` (n_samples,).
    """
    places = regressions.square_places
    sums = RegressionSums(
        np.zeros(len(regressions.groups)),
        np.zeros(len(regressions.values)),
        np.zeros(int(places[-1])),
    )
    if len(regressions.groups):
        _add_regressions(words, weights, regressions, places, sums)
    return sums


@_kernel
def _add_regressions(
    words: Words,
    weights: Array,
    regressions: Regressions,
    square_places: Indices,
    sums: RegressionSums,
) -> None:
    targets, starts, columns, groups, places, values, is_active, is_running = regressions
    widest = 1 + np.diff(starts).max()
    X, target = np.empty((widest, _TILE)), np.empty(_TILE)
    residuals, curvature, weighted = np.empty(_TILE), np.empty(_TILE), np.empty(_TILE)
    X[0] = 1.0
    for first in range(0, len(weights), _TILE):
        own_weights = weights[first : first + _TILE]
        n, r = len(own_weights), 0
        for g in range(len(targets)):
            is_unpacked = False
            while r < len(groups) and groups[r] == g:
                if is_running[r]:
                    if not is_unpacked:
                        is_unpacked = True
                        _unpack(words[targets[g]], first, target[:n])
                        for k in range(starts[g + 1] - starts[g]):
                            _unpack(words[columns[starts[g] + k]], first, X[1 + k, :n])
                    own = slice(places[r], places[r + 1])
                    nats = _fill_residuals(
                        X, target[:n], own_weights, values[own], residuals, curvature
                    )
                    sums.nats[r] += nats
                    _add_moments(
                        X,
                        residuals[:n],
                        curvature[:n],
                        is_active[own],
                        weighted[:n],
                        sums.gradients[own],
                        sums.information[square_places[r] : square_places[r + 1]],
                    )
                r += 1


@_callee
def _unpack(words: Words, first: int, out: Array) -> None:
    """Write bits of a feature, from row `first` on, as 0 and 1."""
    for start in range(0, len(out), 64):
        word, part = words[(first + start) // 64], out[start : start + 64]
        for bit in range(len(part)):
            part[bit] = 1.0 if word & (np.uint64(1) << np.uint64(bit)) else 0.0


@_callee
def _fill_residuals(
    X: Array, target: Array, weights: Array, values: Array, residuals: Array, curvature: Array
) -> float:
    """Fill in w (x − p) and w p (1 − p) of each row; return Σ w log P(x)."""
    n = len(target)
    inputs, nats = residuals[:n], curvature[:n]
    inputs[:] = values[0]
    for k in range(1, len(values)):
        if values[k] != 0.0:
            for row in range(n):
                inputs[row] += values[k] * X[k, row]
    for row in range(n):  # log P, without a sum, which would not be vectorized
        a = inputs[row]
        e = exp_minus(abs(a))
        z = e / (2.0 + e)  # log(1 + e) = 2 artanh(z), with z at most ⅓
        square, series = z * z, 0.0
        for k in range(15, -1, -1):
            series = series * square + 1.0 / (2 * k + 1)
        missed = target[row] if a < 0.0 else 1.0 - target[row]
        nats[row] = -missed * abs(a) - 2.0 * z * series
    total = _dot(weights, nats)
    for row in range(n):
        # The likelier outcome has probability 1 / (1 + exp(−|a|)).
        a, weight = inputs[row], weights[row]
        e = exp_minus(abs(a))
        likelier = 1.0 / (1.0 + e)
        p = likelier if a >= 0.0 else e * likelier
        residuals[row] = weight * (target[row] - p)
        curvature[row] = weight * p * (1.0 - p)
    return total


@_callee
def _add_moments(
    X: Array,
    residuals: Array,
    curvature: Array,
    is_active: Flags,
    weighted: Array,
    gradient: Array,
    information: Array,
) -> None:
    active = np.flatnonzero(is_active)
    for k in range(len(gradient)):
        gradient[k] += _dot(residuals, X[k])
    for a in range(len(active)):
        for row in range(len(weighted)):
            weighted[row] = curvature[row] * X[active[a], row]
        for b in range(a + 1):
            information[a * len(active) + b] += _dot(weighted, X[active[b]])


@_summing
def _dot(left: Array, right: Array) -> float:
    total = 0.0
    for row in range(len(left)):
        total += left[row] * right[row]
    return total


@_kernel
def fill_residuals(
    words: Words,
    weights: Array,
    first: int,
    regressions: Regressions,
    residuals: NDArray[np.float32],
) -> None:
    """Fill in the residuals w (x − p) of rows from `first` on, (n_regressions, n_rows)."""
    targets, starts, columns, groups, places, values, _, _ = regressions
    target, inputs, curvature = np.empty(_TILE), np.empty(_TILE), np.empty(_TILE)
    X = np.empty((1 + np.diff(starts).max(), _TILE))
    for start in range(0, residuals.shape[1], _TILE):
        n = min(_TILE, residuals.shape[1] - start)
        for r in range(len(groups)):
            g, own = groups[r], values[places[r] : places[r + 1]]
            _unpack(words[targets[g]], first + start, target[:n])
            for k in range(starts[g + 1] - starts[g]):
                if own[1 + k] != 0.0:
                    _unpack(words[columns[starts[g] + k]], first + start, X[1 + k, :n])
            own_weights = weights[first + start : first + start + n]
            _fill_residuals(X, target[:n], own_weights, own, inputs, curvature)
            residuals[r, start : start + n] = inputs[:n]


@_kernel
def take_newton_steps(
    regressions: Regressions,
    square_places: Indices,
    sums: RegressionSums,
    weights: Array,
    scales: Array,
    lasso: Array,
    ridge: Array,
    is_moving: Flags,
    values: Array,
    is_active: Flags,
    gains: Array,
) -> None:
    """Fill in the next coefficients of the regressions that move, and what they should gain.

    Parameters
    ----------
    regressions, square_places, sums, weights
        The regressions, their sums over the rows, and the weight of these rows, (n_regressions,).
    scales
        s_j of each feature, (n_features,).
    lasso, ridge
        λ and ρ of each regression, (n_regressions,).
    is_moving
        Whether a regression takes a step, (n_regressions,).
    values, is_active
        The next coefficients, and whether they are active, (n_coefficients,).
    gains
        Expected gain of the objective per row, (n_regressions,); 1e300 if another coefficient
        becomes active.
    """
    _, starts, columns, groups, places, _, _, _ = regressions
    for r in range(len(groups)):
        if not is_moving[r]:
            continue
        g, own = groups[r], slice(places[r], places[r + 1])
        own_scales = np.zeros(places[r + 1] - places[r])
        for k in range(1, len(own_scales)):
            own_scales[k] = scales[columns[starts[g] + k - 1]]
        old, was_active = regressions.values[own], regressions.is_active[own]
        active = np.flatnonzero(was_active)
        gradient = sums.gradients[own] / weights[r] - ridge[r] * own_scales**2 * old
        information = np.empty((len(active), len(active)))
        for a in range(len(active)):
            for b in range(a + 1):
                entry = sums.information[square_places[r] + a * len(active) + b] / weights[r]
                information[a, b] = information[b, a] = entry
            information[a, a] += ridge[r] * own_scales[active[a]] ** 2
        penalties = lasso[r] * own_scales[active]
        change = _solve(information, gradient[active], old[active], penalties)
        moved = old[active] + change
        gains[r] = (gradient[active] * change).sum()
        gains[r] -= 0.5 * (change * (information @ change)).sum()
        gains[r] -= (penalties * (np.abs(moved) - np.abs(old[active]))).sum()
        values[own] = old
        values[own][active] = moved
        for k in range(1, len(own_scales)):
            excess = abs(gradient[k]) - lasso[r] * own_scales[k]
            is_new = not was_active[k] and excess > _NEGLIGIBLE * own_scales[k]
            if is_new:
                gains[r] = _NEW_GAIN
            is_active[own][k] = is_new or lasso[r] == 0.0 or values[own][k] != 0.0


@_callee
def _solve(information: Array, gradient: Array, old: Array, penalties: Array) -> Array:
    """Return the change that maximises the penalised quadratic approximation."""
    n = len(gradient)
    if not penalties.any():
        regular = information.copy()
        for a in range(n):
            regular[a, a] += _LEAST_INFORMATION
        return np.linalg.solve(regular, gradient)  # type: ignore[return-value]
    # The intercept, which has no penalty, follows the other coefficients.
    first = max(information[0, 0], _LEAST_INFORMATION)
    across = information[0] / first
    change, left = np.zeros(n), gradient - gradient[0] * across
    centered = information - first * np.outer(across, across)
    for _ in range(_MAX_SWEEPS):
        largest = 0.0
        for a in range(1, n):
            curvature = max(centered[a, a], _LEAST_INFORMATION)
            value = old[a] + change[a]
            best = value + left[a] / curvature
            best = np.sign(best) * max(abs(best) - penalties[a] / curvature, 0.0)
            if best != value:
                change[a] += best - value
                left -= (best - value) * centered[a]
                largest = max(largest, curvature * (best - value) ** 2)
        if largest < _SETTLED:
            break
    change[0] = gradient[0] / first - (across[1:] * change[1:]).sum()
    return change


@_kernel
def follow_linear_path(
    covariance: Array, target: int, penalties: Array, most: int, slopes: Array
) -> int:
    """Fill in the lasso of a linear regression on all other features, for a path of penalties.

    Features have the covariance (n_features, n_features); `penalties` is λ s_j, (n_penalties,
    n_features), and `slopes` has the same shape. A feature without variance has the slope 0.
    Return the number of penalties up to the first that leaves more than `most` neighbours, which
    ends the path.
    """
    n = len(covariance)
    slope, left = np.zeros(n), covariance[target].copy()
    for place in range(len(penalties)):
        for _ in range(_MAX_SWEEPS):
            largest = 0.0
            for j in range(n):
                curvature = covariance[j, j]
                if j == target or curvature == 0.0:
                    continue
                best = slope[j] + left[j] / curvature
                best = np.sign(best) * max(abs(best) - penalties[place, j] / curvature, 0.0)
                if best != slope[j]:
                    left -= (best - slope[j]) * covariance[j]
                    largest = max(largest, curvature * (best - slope[j]) ** 2)
                    slope[j] = best
            if largest < 1e-8 * covariance[target, target]:
                break
        slopes[place] = slope
        if (slope != 0).sum() > most:
            return place + 1
    return len(penalties)
