"""Weighted logistic regressions of many features on the same points, by guarded Newton steps.

For counts at points x_l, with n_il ones among m_il values of feature i, this maximizes for every i

    f(w, b) = Σ_l [n_il log σ(η_l) + (m_il − n_il) log σ(−η_l)] − ½ λ |w|²,   η_l = wᵀ x_l + b,

which is concave: the M-step of item response models on fixed nodes (Bock & Aitkin, Psychometrika
1981).

Newton's step s is taken unless it lowers f. If it does, a fraction log(1 + r) / r of it is taken,
which cannot lower f; r is the largest change of an η_l along s. The reason: because |σ″| ≤ σ′, a
step t s gains at least sᵀ∇f (t − (exp(r t) − r t − 1) / r²) (after Bach, Electron. J. Statist.
2010, proposition 1), which is largest, and positive, at that fraction.

If a hyperplane separates the ones from the zeros, f has no maximum and (w, b) diverges; if the
counts are at too few points, it has many. Subtracting ½ ε m (|w|² + b²) with ε = 1e-12, m = Σ_l
m_il, gives f one maximum, and moves an existing maximum by about 1e-10. A slope above MAX_SLOPE
cannot be distinguished from a step; (w, b) is then scaled back, which leaves the place of the step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.errors import FitError

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

MAX_SLOPE = 50.0

_RIDGE = 1e-12  # ε
_FLAT_CURVATURE = 100 * _RIDGE  # curvature per unit of mass; ε alone gives about 30 ε
_ROUNDING = 1e-12  # relative rounding error of f; smaller losses are ignored
_MIN_PRODUCT = 1e-150  # curvature without any mass
_MAX_ETA_CHANGE = 30.0  # change of η from σ = ½ to where the ridge outweighs 1 − σ


class LogisticFit(NamedTuple):
    """The maximum of each feature's f."""

    # Slopes w, (n_features, n_components), and offsets b, (n_features,).
    weights: Floats
    offsets: Floats
    converged: Flags  # whether w and b converged to a maximum, (n_features,)
    # Whether the counts do not determine w and b, (n_features,): |w| has reached MAX_SLOPE, or f is
    # flat in some direction. Such features have not converged.
    diverged: Flags
    rounds: int  # of Newton's method


class _Problem(NamedTuple):
    """The terms of f."""

    design: Floats  # (n_points, p), rows (x_l, 1)
    products: Floats  # (n_points, p²), products of the columns of the design
    ones: Floats  # (n_features, n_points)
    zeros: Floats  # (n_features, n_points)
    mass: Floats  # (n_features,), ones and zeros at all points
    precision: Floats  # (n_features, p), λ and ε m

    def select(self, features: NDArray[np.int64]) -> _Problem:
        """Return the problem of some features."""
        return _Problem(self.design, self.products, *(field[features] for field in self[2:]))


class _Expansion(NamedTuple):
    """Each feature's f to second order around its coefficients (w, b)."""

    at: Floats  # (n_features, p)
    value: Floats  # (n_features,)
    gradient: Floats  # (n_features, p)
    curvature: Floats  # minus the Hessian, (n_features, p, p)


def logistic_m_step(
    points: Floats,
    ones: Floats,
    mass: Floats,
    weights: Floats,
    offsets: Floats,
    *,
    prior_precision: float = 0.0,
    equal_slopes: bool = False,
    tol: float = 1e-14,
    max_rounds: int = 100,
) -> LogisticFit:
    """Maximize f for every feature.

    f never decreases, however few the rounds, so this is a step of generalized EM.

    Parameters
    ----------
    points
        Points x_l, (n_points, n_components).
    ones, mass
        Counts n_il and m_il, not necessarily integers, (n_features, n_points).
    weights, offsets
        Initial values, (n_features, n_components) and (n_features,); scaled back if too steep.
    prior_precision
        λ; 0 for maximum likelihood.
    equal_slopes
        Use one slope for all features, which maximizes the sum of all f and starts at the mean of
        `weights`. Requires one component.
    tol
        Stop after a step whose predicted gain per unit of mass is below this, nats.
    max_rounds
        Maximum number of rounds.

    Returns
    -------
    The fit; a feature without any mass keeps its initial values, unless there is a prior.
    """
    if equal_slopes and points.shape[1] > 1:
        raise FitError(
            f"{{equal_slopes=yes}} needs one component, but there are {points.shape[1]}.",
            parameter="equal_slopes",
        )
    if equal_slopes:
        weights = np.full_like(weights, weights.mean())
    problem = _make_problem(points, ones, mass, prior_precision)
    start = _expand(problem, _limit_slopes(np.column_stack([weights, offsets])))
    maximum, settled, rounds = _maximize(problem, start, equal_slopes, tol, max_rounds)
    end = _limit_slopes(maximum.at)
    if (end != maximum.at).any():
        # Scaling back may lose more than was gained; then the initial values are kept.
        is_better = _is_no_loss(_expand(problem, end).value, start.value, equal_slopes)
        end = np.where(is_better[:, None], end, start.at)
    diverged = _is_steep(maximum.at) | _is_flat(maximum, problem.mass)
    return LogisticFit(end[:, :-1], end[:, -1], settled & ~diverged, diverged, rounds)


def _make_problem(points: Floats, ones: Floats, mass: Floats, prior_precision: float) -> _Problem:
    n_points, n_components = points.shape
    design = np.column_stack([points, np.ones(n_points)])
    products = (design[:, :, None] * design[:, None, :]).reshape(n_points, -1)
    total = mass.sum(axis=1)
    precision = np.tile(_RIDGE * total[:, None], n_components + 1)
    precision[:, :-1] += prior_precision
    return _Problem(design, products, ones, mass - ones, total, precision)


def _maximize(
    problem: _Problem, start: _Expansion, equal_slopes: bool, tol: float, max_rounds: int
) -> tuple[_Expansion, Flags, int]:
    """Take rounds until all features converge; return the end, convergence flags and rounds."""
    current = _Expansion(*(field.copy() for field in start))
    refused, settled = np.zeros((2, len(start.at)), np.bool_)
    rounds = 0
    while rounds < max_rounds and not settled.all():
        rounds += 1
        active = np.flatnonzero(~settled)
        subproblem, start_point = (
            problem.select(active),
            _Expansion(*(field[active] for field in current)),
        )
        step = _newton_step_common_slope(start_point) if equal_slopes else _newton_step(start_point)
        fraction = _step_fraction(step @ problem.design.T, refused[active], equal_slopes)
        trial = _expand(subproblem, start_point.at + fraction[:, None] * step)
        predicted, target = (start_point.gradient * step).sum(axis=1) / 2, tol * subproblem.mass
        settled[active] = _sum_if_equal_slopes(predicted, equal_slopes) <= _sum_if_equal_slopes(
            target, equal_slopes
        )
        better = _is_no_loss(trial.value, start_point.value, equal_slopes)
        refused[active] = ~better
        for field, new in zip(current, trial, strict=True):
            field[active[better]] = new[better]
    return current, settled, rounds


def _expand(problem: _Problem, coefficients: Floats) -> _Expansion:
    """Expand f to second order, with σ(η) and σ(−η) both computed accurately."""
    eta = coefficients @ problem.design.T
    up, down = scipy.special.expit(eta), scipy.special.expit(-eta)
    value = (
        problem.ones * scipy.special.log_expit(eta) + problem.zeros * scipy.special.log_expit(-eta)
    ).sum(axis=1)
    gradient = (problem.ones * down - problem.zeros * up) @ problem.design
    curvature = ((problem.ones + problem.zeros) * up * down) @ problem.products
    return _Expansion(
        coefficients,
        value - (coefficients**2 * problem.precision).sum(axis=1) / 2,
        gradient - coefficients * problem.precision,
        curvature.reshape(*coefficients.shape, -1)
        + _diagonal_matrices(problem.precision + _MIN_PRODUCT),
    )


def _diagonal_matrices(entries: Floats) -> Floats:
    """Return diagonal matrices, (n, p, p), with these entries, (n, p)."""
    return np.asarray(entries[:, :, None] * np.eye(entries.shape[1]))


def _newton_step(expansion: _Expansion) -> Floats:
    """Return Newton's step of each feature, (n_features, p)."""
    step = np.linalg.solve(expansion.curvature, expansion.gradient[..., None])
    return np.asarray(step[..., 0], np.float64)


def _newton_step_common_slope(expansion: _Expansion) -> Floats:
    """Return Newton's step of all features together, with one slope.

    The offsets interact only through the slope; eliminating them leaves one equation.
    """
    H, (slope_gradient, offset_gradient) = expansion.curvature, expansion.gradient.T
    ratio = H[:, 0, 1] / H[:, 1, 1]
    slope = (slope_gradient - ratio * offset_gradient).sum() / (
        H[:, 0, 0] - ratio * H[:, 0, 1]
    ).sum()
    offsets = offset_gradient / H[:, 1, 1] - ratio * slope
    return np.column_stack([np.full(len(H), slope), offsets])


def _step_fraction(change: Floats, refused: Flags, equal_slopes: bool) -> Floats:
    """Return the fraction of a step to take, (n_features,), given its `change` of η.

    This is all of the step within limits, or, after a refusal, the fraction that cannot lower f.
    """
    reach = abs(change).max(axis=1) + _MIN_PRODUCT
    if equal_slopes:
        reach[:] = reach.max()
    full = np.minimum(_MAX_ETA_CHANGE / reach, 1.0)
    return np.asarray(np.where(refused, np.log1p(reach) / reach, full))


def _sum_if_equal_slopes(values: Floats, equal_slopes: bool) -> Floats:
    """Return each feature's value, or with equal slopes, which are one problem, the sum."""
    return np.full(len(values), values.sum()) if equal_slopes else values


def _is_no_loss(new: Floats, old: Floats, equal_slopes: bool) -> Flags:
    new, old = _sum_if_equal_slopes(new, equal_slopes), _sum_if_equal_slopes(old, equal_slopes)
    return np.asarray(new >= old - _ROUNDING * abs(old))


def _is_steep(coefficients: Floats) -> Flags:
    return np.asarray(np.linalg.norm(coefficients[:, :-1], axis=1) > MAX_SLOPE)


def _is_flat(expansion: _Expansion, mass: Floats) -> Flags:
    """Return which features have a direction of hardly any curvature, or no mass."""
    lowest = np.linalg.eigvalsh(expansion.curvature)[:, 0]
    return np.asarray(lowest <= _FLAT_CURVATURE * mass + 2 * _MIN_PRODUCT)


def _limit_slopes(coefficients: Floats) -> Floats:
    """Scale (w, b) back so that |w| is at most MAX_SLOPE."""
    size = np.linalg.norm(coefficients[:, :-1], axis=1, keepdims=True)
    return np.asarray(coefficients * (MAX_SLOPE / np.maximum(size, MAX_SLOPE)))
