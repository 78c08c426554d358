"""Weighted logistic regressions of many features on the same points, by guarded Newton steps.

For counts at points x_l, n_il ones among m_il values of feature i, it maximises for every i

    f(w, b) = Σ_l [n_il log σ(η_l) + (m_il − n_il) log σ(−η_l)] − ½ λ |w|²,   η_l = wᵀ x_l + b,

which is concave: the M-step of item response models on fixed nodes (Bock & Aitkin, Psychometrika
1981).

Newton's step s is taken where it does not lower f. Where it does, a fraction log(1 + r) / r of it
cannot, r being the largest change of an η_l along s: as |σ″| ≤ σ′, a step t s gains at least
sᵀ∇f (t − (exp(r t) − r t − 1) / r²) (after Bach, Electron. J. Statist. 2010, proposition 1), which
is largest, and above 0, at that fraction.

Where a hyperplane parts the ones from the zeros, f has no maximum and (w, b) runs away; where
counts are at too few points, it has many. ½ ε m (|w|² + b²) with ε = 1e-12, m = Σ_l m_il, is taken
off f to give it one. That moves a maximum that f has by some 1e-10. A slope beyond MAX_SLOPE is a
step as far as data can tell; (w, b) is then scaled back, which leaves the step where it is.
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
_FLAT_CURVATURE = 100 * _RIDGE  # curvature per unit of mass; what ε alone holds has some 30 ε
_ROUNDING = 1e-12  # relative error of f: a loss below it is none
_MIN_PRODUCT = 1e-150  # curvature where there is no mass
_MAX_ETA_CHANGE = 30.0  # change of η from σ = ½ to where ε counts for more than what σ lacks


class LogisticFit(NamedTuple):
    """Maximum of every feature's f.

    Attributes
    ----------
    weights
        Slopes w, (n_features, n_components).
    offsets
        Offsets b, (n_features,).
    converged
        (n_features,), true where w and b settled at a maximum.
    diverged
        (n_features,), true where counts do not determine w and b: |w| has come to MAX_SLOPE, or f
        is flat in some direction. Never converged.
    rounds
        Newton rounds taken.
    """

    weights: Floats
    offsets: Floats
    converged: Flags
    diverged: Flags
    rounds: int


class _Problem(NamedTuple):
    """What f is made of."""

    design: Floats  # (n_points, p), rows (x_l, 1)
    products: Floats  # (n_points, p²), products of the columns of the design
    ones: Floats  # (n_features, n_points)
    zeros: Floats  # (n_features, n_points)
    mass: Floats  # (n_features,), ones and zeros at all points
    precision: Floats  # (n_features, p), λ and ε m

    def select(self, features: NDArray[np.int64]) -> _Problem:
        """Give the problem of some features."""
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
    """Maximise f for every feature.

    f never ends below where it started, however few the rounds: a step of generalised EM.

    Parameters
    ----------
    points
        (n_points, n_components), the x_l.
    ones, mass
        Counts n_il and m_il, not necessarily whole, (n_features, n_points).
    weights, offsets
        Where to start, (n_features, n_components) and (n_features,); scaled back if too steep.
    prior_precision
        λ; 0 for maximum likelihood.
    equal_slopes
        One slope for all features, which maximises the sum of all f; starts at the mean of
        `weights`. For one component only.
    tol
        Gain in f per unit of mass that a Newton step promises, nats, below which it is the last.
    max_rounds
        Rounds at the most.

    Returns
    -------
    LogisticFit
        A feature without any mass stays where it starts, but for a prior.

    Raises
    ------
    FitError
        If equal slopes are asked for with more than one component.
    """
    if equal_slopes and points.shape[1] > 1:
        raise FitError(
            f"Expected 1 component for equal slopes, got {points.shape[1]}. Let the slopes differ."
        )
    if equal_slopes:
        weights = np.full_like(weights, weights.mean())
    problem = _make_problem(points, ones, mass, prior_precision)
    start = _expand(problem, _limit_slopes(np.column_stack([weights, offsets])))
    top, settled, rounds = _maximize(problem, start, equal_slopes, tol, max_rounds)
    end = _limit_slopes(top.at)
    if (end != top.at).any():
        # Scaled back, a steep slope may lose more than it gained: then it stays where it was.
        worth = _is_no_loss(_expand(problem, end).value, start.value, equal_slopes)
        end = np.where(worth[:, None], end, start.at)
    diverged = _is_steep(top.at) | _is_flat(top, problem.mass)
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
    """Take rounds until all features have settled: where they end, who has settled, rounds."""
    here = _Expansion(*(field.copy() for field in start))
    refused, settled = np.zeros((2, len(start.at)), np.bool_)
    rounds = 0
    while rounds < max_rounds and not settled.all():
        rounds += 1
        active = np.flatnonzero(~settled)
        some, now = problem.select(active), _Expansion(*(field[active] for field in here))
        step = _newton_step_common_slope(now) if equal_slopes else _newton_step(now)
        fraction = _step_fraction(step @ problem.design.T, refused[active], equal_slopes)
        there = _expand(some, now.at + fraction[:, None] * step)
        promise, target = (now.gradient * step).sum(axis=1) / 2, tol * some.mass
        settled[active] = _sum_if_equal_slopes(promise, equal_slopes) <= _sum_if_equal_slopes(
            target, equal_slopes
        )
        better = _is_no_loss(there.value, now.value, equal_slopes)
        refused[active] = ~better
        for field, new in zip(here, there, strict=True):
            field[active[better]] = new[better]
    return here, settled, rounds


def _expand(problem: _Problem, at: Floats) -> _Expansion:
    """Expand f, each side of σ in a form that loses no digits."""
    eta = at @ problem.design.T
    up, down = scipy.special.expit(eta), scipy.special.expit(-eta)
    value = (
        problem.ones * scipy.special.log_expit(eta) + problem.zeros * scipy.special.log_expit(-eta)
    ).sum(axis=1)
    gradient = (problem.ones * down - problem.zeros * up) @ problem.design
    curvature = ((problem.ones + problem.zeros) * up * down) @ problem.products
    return _Expansion(
        at,
        value - (at**2 * problem.precision).sum(axis=1) / 2,
        gradient - at * problem.precision,
        curvature.reshape(*at.shape, -1) + _diagonal_matrices(problem.precision + _MIN_PRODUCT),
    )


def _diagonal_matrices(entries: Floats) -> Floats:
    """Diagonal matrices, (n, p, p), of entries (n, p)."""
    return np.asarray(entries[:, :, None] * np.eye(entries.shape[1]))


def _newton_step(expansion: _Expansion) -> Floats:
    """Newton's step of each feature, (n_features, p)."""
    step = np.linalg.solve(expansion.curvature, expansion.gradient[..., None])
    return np.asarray(step[..., 0], np.float64)


def _newton_step_common_slope(expansion: _Expansion) -> Floats:
    """Newton's step of all features together, with one slope.

    Offsets meet in the slope alone: eliminated, they leave one equation.
    """
    H, (along, aside) = expansion.curvature, expansion.gradient.T
    ratio = H[:, 0, 1] / H[:, 1, 1]
    slope = (along - ratio * aside).sum() / (H[:, 0, 0] - ratio * H[:, 0, 1]).sum()
    return np.column_stack([np.full(len(H), slope), aside / H[:, 1, 1] - ratio * slope])


def _step_fraction(change: Floats, refused: Flags, equal_slopes: bool) -> Floats:
    """Fraction of a step to take, (n_features,), if it changes η by this, (n_features, n_points).

    All within reason, and where that was refused, what cannot lower f.
    """
    reach = abs(change).max(axis=1) + _MIN_PRODUCT
    if equal_slopes:
        reach[:] = reach.max()
    full = np.minimum(_MAX_ETA_CHANGE / reach, 1.0)
    return np.asarray(np.where(refused, np.log1p(reach) / reach, full))


def _sum_if_equal_slopes(values: Floats, equal_slopes: bool) -> Floats:
    """Give each feature's value, or with one slope for all, which are one problem, their sum."""
    return np.full(len(values), values.sum()) if equal_slopes else values


def _is_no_loss(new: Floats, old: Floats, equal_slopes: bool) -> Flags:
    new, old = _sum_if_equal_slopes(new, equal_slopes), _sum_if_equal_slopes(old, equal_slopes)
    return np.asarray(new >= old - _ROUNDING * abs(old))


def _is_steep(at: Floats) -> Flags:
    return np.asarray(np.linalg.norm(at[:, :-1], axis=1) > MAX_SLOPE)


def _is_flat(expansion: _Expansion, mass: Floats) -> Flags:
    """Tell where some direction is hardly curved, or there is no mass at all."""
    lowest = np.linalg.eigvalsh(expansion.curvature)[:, 0]
    return np.asarray(lowest <= _FLAT_CURVATURE * mass + 2 * _MIN_PRODUCT)


def _limit_slopes(at: Floats) -> Floats:
    """Scale (w, b) so that |w| is MAX_SLOPE where it is beyond."""
    size = np.linalg.norm(at[:, :-1], axis=1, keepdims=True)
    return np.asarray(at * (MAX_SLOPE / np.maximum(size, MAX_SLOPE)))
