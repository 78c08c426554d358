"""Smoothing of Gaussian random walks that are observed through Gaussian sites.

The positions of a member at its times t_1 < t_2 < … are

    x_1 ~ N(μ, φ²),   x_k = x_{k−1} + N(0, s² (t_k − t_{k−1})),

and site k multiplies their density by exp(h_k x_k − ½ τ_k x_k²), without a constant. The filter and
smoother of Kalman and of Rauch, Tung & Striebel (AIAA Journal 3, 1965) give the moments of all x_k
and the logarithm of the integral of the product. All members take their k-th step together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MIN_INNOVATION = 1e-8
"""Smallest innovation variance of an estimate, in the unit of times; positions then hardly move."""
_MAX_LOG = math.log(1e4)  # of variances that are estimated, and of 1 / them
_MIN_CAVITY = 1e-12  # precision of a cavity


class Sites(NamedTuple):
    """Precisions τ and h, precisions times means, of all states, (n_states,) each."""

    precision: Floats
    linear: Floats

    @classmethod
    def divide(cls, mean: Floats, variance: Floats, cavity: RowGaussian) -> Sites:
        """Return the sites that turn cavities into Gaussians with these moments."""
        precision = np.maximum(1.0 / variance - 1.0 / cavity.variance, 0.0)
        linear = mean / variance - cavity.mean / cavity.variance
        return cls(precision, np.where(precision > 0, linear, 0.0))

    def standardize(self, mean: float, deviation: float) -> Sites:
        """Return the sites of (x − mean) / deviation."""
        precision = self.precision * deviation**2
        return Sites(precision, (self.linear - self.precision * mean) * deviation)

    def integrate(self, mean: Floats, variance: Floats) -> Floats:
        """Return log ∫ N(x; mean, variance) exp(h x − ½ τ x²) dx of each site."""
        ratio = 1.0 + self.precision * variance
        squares = self.linear**2 * variance + (2 * self.linear - self.precision * mean) * mean
        return np.asarray(0.5 * (squares / ratio - np.log(ratio)))


class RowGaussian(NamedTuple):
    """Mean and variance of each state, (n_states,) each."""

    mean: Floats
    variance: Floats


class WalkPrior(NamedTuple):
    """Mean μ and variance φ² of first positions, and s², the variance of a step of length 1."""

    mean: float = 0.0
    variance: float = 1.0
    innovation: float = 0.1


class ItemPenalty(NamedTuple):
    """The log prior −½ λ Σ [(w φ)² (1 + s² g / φ²) + (b + w μ)²] of items on the scale of first
    positions, with the mean time g since the first state.

    Attributes
    ----------
    precision
        λ.
    slopes, offsets
        w and b, (n_features,) each.
    """

    precision: float
    slopes: Floats
    offsets: Floats


NO_PENALTY = ItemPenalty(0.0, np.zeros(0), np.zeros(0))


class SmoothedWalk(NamedTuple):
    """Moments of all positions given all sites.

    Attributes
    ----------
    posterior
        Mean and variance of each state.
    log_integral
        Logarithm of the integral of prior times sites, nats.
    first_mean, first_square
        Sums over members of E[x_1] and E[(x_1 − μ)²].
    step_square
        Sum over steps of E[(x_k − x_{k−1})²] / (t_k − t_{k−1}).
    """

    posterior: RowGaussian
    log_integral: float
    first_mean: float
    first_square: float
    step_square: float


class WalkTimes(NamedTuple):
    """The order of states, which are sorted by member and time.

    Attributes
    ----------
    steps
        For each k, the indices of the k-th states of all members that have so many. Members are in
        the same order, so that those of each entry are the first ones of the entry before.
    gaps
        For each k, the time since the state before, of the same length; empty for the first.
    mean_age
        Mean over all states of the time since the first state of the member.
    unit
        Median gap. Bounds and starts of s² are for this unit, as times may count years or seconds.
    """

    steps: tuple[Integers, ...]
    gaps: tuple[Floats, ...]
    mean_age: float = 0.0
    unit: float = 1.0

    @classmethod
    def from_states(cls, member: Integers, time: Floats) -> WalkTimes:
        """Order states, given the member and the time of each, (n_states,)."""
        _, first, counts = np.unique(member, return_index=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        first, counts = first[order], counts[order]
        n_members = [int(np.searchsorted(-counts, -k)) for k in range(int(counts[0]))]
        steps = tuple(first[:n] + k for k, n in enumerate(n_members))
        gaps = (np.empty(0), *(time[own] - time[own - 1] for own in steps[1:]))
        age = sum(float((time[own] - time[own - k]).sum()) for k, own in enumerate(steps))
        unit = float(np.median(np.concatenate(gaps))) if len(gaps) > 1 else 1.0
        return cls(steps, gaps, age / len(member), unit)

    @property
    def n_members(self) -> int:
        """Number of members."""
        return len(self.steps[0])

    @property
    def n_steps(self) -> int:
        """Number of steps between states."""
        return sum(len(own) for own in self.steps[1:])


def smooth_walk(times: WalkTimes, prior: WalkPrior, sites: Sites) -> SmoothedWalk:
    """Return the moments of all positions given all sites."""
    n_states = len(sites.precision)
    mean, variance, predicted_mean, predicted_variance = np.empty((4, n_states))
    for k, own in enumerate(times.steps):
        if k == 0:
            predicted_mean[own], predicted_variance[own] = prior.mean, prior.variance
        else:
            predicted_mean[own] = mean[own - 1]
            predicted_variance[own] = variance[own - 1] + prior.innovation * times.gaps[k]
        ratio = 1.0 + sites.precision[own] * predicted_variance[own]
        moved = predicted_mean[own] + predicted_variance[own] * sites.linear[own]
        mean[own], variance[own] = moved / ratio, predicted_variance[own] / ratio
    log_integral = float(sites.integrate(predicted_mean, predicted_variance).sum())
    step_square = 0.0
    for k in range(len(times.steps) - 1, 0, -1):
        after = times.steps[k]
        own = after - 1
        gain = variance[own] / predicted_variance[after]
        mean[own] += gain * (mean[after] - predicted_mean[after])
        variance[own] += gain**2 * (variance[after] - predicted_variance[after])
        squares = (mean[after] - mean[own]) ** 2 + (1 - 2 * gain) * variance[after] + variance[own]
        step_square += float((squares / times.gaps[k]).sum())
    first = times.steps[0]
    squares = (mean[first] - prior.mean) ** 2 + variance[first]
    posterior = RowGaussian(mean, variance)
    return SmoothedWalk(
        posterior, log_integral, float(mean[first].sum()), float(squares.sum()), step_square
    )


def compute_change_variance(times: Floats, site_precision: Floats, innovation: float) -> float:
    """Return the variance of x_K − x_1 of a member with standard x_1, given all sites.

    `times` and `site_precision` are (K,), with K ≥ 1.
    """
    n_times = len(times)
    if n_times == 1 or innovation == 0:
        return 0.0
    steps = 1.0 / (innovation * np.diff(times))
    diagonal = site_precision + np.append(steps, 0.0) + np.append(1.0, steps)
    precision = np.diag(diagonal) - np.diag(steps, 1) - np.diag(steps, -1)
    contrast = np.zeros(n_times)
    contrast[0], contrast[-1] = -1.0, 1.0
    return float(contrast @ np.linalg.solve(precision, contrast))


def find_cavities(posterior: RowGaussian, sites: Sites) -> RowGaussian:
    """Return the distribution of each state given all sites but its own."""
    precision = np.maximum(1.0 / posterior.variance - sites.precision, _MIN_CAVITY)
    mean = (posterior.mean / posterior.variance - sites.linear) / precision
    return RowGaussian(mean, 1.0 / precision)


def estimate_walk_prior(
    times: WalkTimes,
    sites: Sites,
    start: WalkPrior,
    innovation: float | None,
    penalty: ItemPenalty = NO_PENALTY,
    max_variance: float = math.inf,
) -> WalkPrior:
    """Return the likeliest prior of the walk given the sites, with the penalty of items.

    By Fisher's identity, the gradient of the log integral is the mean of that of the log density of
    all positions.

    Parameters
    ----------
    innovation
        s² / φ² if it is known; None to estimate it.
    max_variance
        Largest φ².
    """
    squares = penalty.precision * float((penalty.slopes**2).sum())
    has_steps = times.n_steps > 0 and innovation != 0

    def read(free: Floats) -> WalkPrior:
        mean, log_variance = float(free[0]), float(free[1])
        ratio = innovation
        if innovation is None:
            ratio = math.exp(free[2] - log_variance) if times.n_steps else start.innovation
        assert ratio is not None
        return WalkPrior(mean, math.exp(log_variance), ratio * math.exp(log_variance))

    def score(free: Floats) -> tuple[float, Floats]:
        """Return minus the objective per member, and its gradient."""
        prior = read(free)
        found = smooth_walk(times, prior, sites)
        moved = penalty.offsets + prior.mean * penalty.slopes
        spread = prior.variance + prior.innovation * times.mean_age
        nats = squares * spread + penalty.precision * float((moved**2).sum())
        objective = found.log_integral - 0.5 * nats
        by_mean = (found.first_mean - times.n_members * prior.mean) / prior.variance
        by_mean -= penalty.precision * float((moved * penalty.slopes).sum())
        by_variance = 0.5 * (found.first_square / prior.variance - times.n_members)
        by_variance -= 0.5 * squares * prior.variance
        by_innovation = 0.0
        if has_steps:
            by_innovation = 0.5 * (found.step_square / prior.innovation - times.n_steps)
            by_innovation -= 0.5 * squares * prior.innovation * times.mean_age
        gradient = np.array([by_mean, by_variance, by_innovation])
        if innovation is not None or not times.n_steps:
            gradient = np.array([by_mean, by_variance + by_innovation])
        return -objective / times.n_members, -gradient / times.n_members

    max_log = min(_MAX_LOG, math.log(max_variance))
    first = [start.mean, min(math.log(start.variance), max_log)]
    bounds: list[tuple[float | None, float]] = [(-100.0, 100.0), (-_MAX_LOG, max_log)]
    if innovation is None and times.n_steps:
        first.append(math.log(start.innovation))
        log_unit = math.log(times.unit)
        bounds.append((math.log(MIN_INNOVATION) - log_unit, _MAX_LOG - log_unit))
    found = minimize(score, np.array(first), jac=True, method="L-BFGS-B", bounds=bounds)
    return read(found.x)
