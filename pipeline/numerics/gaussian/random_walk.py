"""Smoothing of Gaussian random walks that are observed through Gaussian sites.

The positions of a member at its times t_1 < t_2 < … are

    x_1 ~ N(0, 1),   x_k = x_{k−1} + N(0, s² (t_k − t_{k−1})),

and site k multiplies their density by exp(h_k x_k − ½ τ_k x_k²), without a constant. The filter and
smoother of Kalman and of Rauch, Tung & Striebel (AIAA Journal 3, 1965) give the moments of all x_k
and the logarithm of the integral of the product.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
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

    def standardize(self, mean: Floats, deviation: Floats) -> Sites:
        """Return the sites of (x − mean) / deviation of each state."""
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


class Scales(NamedTuple):
    """Which states share a mean and a scale: x = μ_g + φ_g z, with a standard walk z.

    Periods that no item links have a scale each, and only the walk holds these together.

    Attributes
    ----------
    state, item
        Index g of the scale of each state, (n_states,), and of each item, (n_features,).
    """

    state: Integers
    item: Integers

    @classmethod
    def make_common(cls, n_states: int, n_items: int) -> Scales:
        """Return a single scale."""
        return cls(np.zeros(n_states, np.int64), np.zeros(n_items, np.int64))

    @property
    def n_scales(self) -> int:
        """Number of scales."""
        return int(self.state.max(initial=0)) + 1


class WalkUnits(NamedTuple):
    """The mean μ_g and deviation φ_g of each scale, (n_scales,), and s² of the standard walk."""

    mean: Floats
    deviation: Floats
    innovation: float


class ItemPenalty(NamedTuple):
    """The log prior −½ λ Σ [(w φ)² (1 + s² g) + (b + w μ)²] of items of a standard walk, with the
    mean time g since the first state.

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


class SmoothedWalk(NamedTuple):
    """Moments of all positions given all sites.

    Attributes
    ----------
    posterior
        Mean and variance of each state.
    log_integral
        Logarithm of the integral of prior times sites, nats.
    step_square
        Sum over steps of E[(x_k − x_{k−1})²] / (t_k − t_{k−1}).
    """

    posterior: RowGaussian
    log_integral: float
    step_square: float


class WalkTimes(NamedTuple):
    """The times of states, which are sorted by member and time.

    Attributes
    ----------
    gap
        Time since the member's state before, (n_states,); 0 for the first.
    mean_age
        Mean over all states of the time since the first state of the member.
    unit
        Median gap. Bounds and starts of s² are for this unit, as times may count years or seconds.
    """

    gap: Floats
    mean_age: float = 0.0
    unit: float = 1.0

    @classmethod
    def from_states(cls, member: Integers, time: Floats) -> WalkTimes:
        """Order states, given the member and the time of each, (n_states,)."""
        _, first, counts = np.unique(member, return_index=True, return_counts=True)
        gap = np.diff(time, prepend=0.0)
        gap[first] = 0.0
        mean_age = float((time - np.repeat(time[first], counts)).mean())
        unit = float(np.median(gap[gap > 0])) if len(first) < len(gap) else 1.0
        return cls(gap, mean_age, unit)

    @property
    def n_members(self) -> int:
        """Number of members."""
        return len(self.gap) - self.n_steps

    @property
    def n_steps(self) -> int:
        """Number of steps between states."""
        return int(np.count_nonzero(self.gap))


def smooth_walk(times: WalkTimes, innovation: float, sites: Sites) -> SmoothedWalk:
    """Return the moments of all positions given all sites; `innovation` is s²."""
    states = np.empty((4, len(times.gap)))
    step_square = _smooth(times.gap, innovation, sites.precision, sites.linear, states)
    mean, variance, *predicted = states
    log_integral = float(sites.integrate(*predicted).sum())
    return SmoothedWalk(RowGaussian(mean, variance), log_integral, step_square)


@njit(nogil=True, cache=True, error_model="numpy")
def _smooth(
    gap: Floats, innovation: float, precision: Floats, linear: Floats, states: Floats
) -> float:
    """Fill means and variances given all sites and given earlier ones, (4, n_states)."""
    mean, variance, predicted_mean, predicted_variance = states
    for k in range(len(gap)):
        predicted_mean[k], predicted_variance[k] = 0.0, 1.0
        if gap[k] > 0:
            predicted_mean[k] = mean[k - 1]
            predicted_variance[k] = variance[k - 1] + innovation * gap[k]
        ratio = 1.0 + precision[k] * predicted_variance[k]
        mean[k] = (predicted_mean[k] + predicted_variance[k] * linear[k]) / ratio
        variance[k] = predicted_variance[k] / ratio
    step_square = 0.0
    for k in range(len(gap) - 1, 0, -1):
        if gap[k] > 0:
            gain = variance[k - 1] / predicted_variance[k]
            mean[k - 1] += gain * (mean[k] - predicted_mean[k])
            variance[k - 1] += gain**2 * (variance[k] - predicted_variance[k])
            square = (mean[k] - mean[k - 1]) ** 2 + (1 - 2 * gain) * variance[k] + variance[k - 1]
            step_square += square / gap[k]
    return step_square


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


def estimate_units(
    times: WalkTimes,
    sites: Sites,
    scales: Scales,
    start: float,
    innovation: float | None,
    penalty: ItemPenalty,
    max_deviation: float = math.inf,
) -> WalkUnits:
    """Return the likeliest units of positions given the sites, with the penalty of items.

    By Fisher's identity, the gradient of the log integral is the mean over all positions of that of
    the logarithm of the sites.

    Parameters
    ----------
    start
        s² where the search starts.
    innovation
        s² if it is known; None to estimate it.
    max_deviation
        Largest φ.
    """
    n = scales.n_scales
    squares = penalty.precision * np.bincount(scales.item, penalty.slopes**2, n)
    is_free = innovation is None and times.n_steps > 0

    def read(free: Floats) -> WalkUnits:
        known = start if innovation is None else innovation
        return WalkUnits(
            free[:n], np.exp(free[n : 2 * n]), math.exp(free[-1]) if is_free else known
        )

    def score(free: Floats) -> tuple[float, Floats]:
        """Return minus the objective per member, and its gradient."""
        units = read(free)
        mean, deviation = units.mean[scales.state], units.deviation[scales.state]
        found = smooth_walk(times, units.innovation, sites.standardize(mean, deviation))
        z, z_square = found.posterior.mean, found.posterior.variance + found.posterior.mean**2
        residual = sites.linear - sites.precision * mean
        constant = 0.5 * float(((sites.linear + residual) * mean).sum())
        moved = penalty.offsets + units.mean[scales.item] * penalty.slopes
        spread = squares * units.deviation**2
        ages = 1.0 + units.innovation * times.mean_age
        nats = float(spread.sum()) * ages + penalty.precision * float((moved**2).sum())
        by_item = penalty.precision * moved * penalty.slopes
        by_site = residual - sites.precision * deviation * z
        by_scale = deviation * (residual * z - sites.precision * deviation * z_square)
        gradient = [
            np.bincount(scales.state, by_site, n) - np.bincount(scales.item, by_item, n),
            np.bincount(scales.state, by_scale, n) - spread * ages,
        ]
        if is_free:
            growth = float(spread.sum()) * (ages - 1.0)
            steps = found.step_square / units.innovation - times.n_steps
            gradient.append(np.array([0.5 * (steps - growth)]))
        objective = found.log_integral + constant - 0.5 * nats
        return -objective / times.n_members, -np.concatenate(gradient) / times.n_members

    max_log = min(0.5 * _MAX_LOG, math.log(max_deviation))
    first = [np.zeros(n), np.full(n, min(0.0, max_log))]
    bounds = [(-100.0, 100.0)] * n + [(-0.5 * _MAX_LOG, max_log)] * n
    if is_free:
        first.append(np.array([math.log(start)]))
        log_unit = math.log(times.unit)
        bounds.append((math.log(MIN_INNOVATION) - log_unit, _MAX_LOG - log_unit))
    found = minimize(score, np.concatenate(first), jac=True, method="L-BFGS-B", bounds=bounds)
    return read(found.x)
