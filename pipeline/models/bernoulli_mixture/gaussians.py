"""Continuous features of the mixture: a normal distribution of each feature in each component.

Model: x_j | k ~ N(μ_kj, σ_kj²), independent of all other features given k. With continuous features
only, this is the Gaussian mixture with diagonal covariances.

As prior, each component has s more rows, spread like all rows: their log-density is
−s (log σ + ((μ − m)² + d²) / 2σ²) with the mean m and the standard deviation d of all rows. σ is at
least `MIN_DEVIATION` d, so the likelihood stays finite if a component has equal values only.

The sums of the M-step are of z = (x − μ) / σ with the parameters of the E-step, so a large mean
costs no digits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.params import NumberRange, array_field

MIN_DEVIATION = 0.01
"""Lower bound of a standard deviation within a component, in units of the feature's."""
_FEW_ROWS, _SOME_ROWS = 10, 30
_COLLAPSED = 0.25  # of the deviation within the other components
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)

_kernel = njit(nogil=True, cache=True, error_model="numpy")


@dataclass(frozen=True)
class Gaussians:
    """Continuous features of the mixture.

    Attributes
    ----------
    means, deviations
        μ and σ, the mean and standard deviation of each feature in each component.
    overall_means, overall_deviations
        Mean and standard deviation of each feature in the fitted rows.
    """

    means: Array = array_field("component", "continuous")
    deviations: Array = array_field("component", "continuous", allowed=NumberRange(above=0))
    overall_means: Array = array_field("continuous")
    overall_deviations: Array = array_field("continuous", allowed=NumberRange(above=0))


@dataclass(frozen=True)
class GaussianErrors:
    """Standard errors of μ and σ."""

    means: Array = array_field("component", "continuous")
    deviations: Array = array_field("component", "continuous")


def add_log_densities(numbers: NDArray[Any], gaussians: Gaussians, log_weights: Array) -> Array:
    """Return log π_k plus the log-density of the numbers of each row, (n_samples, n_components).

    `numbers` are (n_continuous, n_samples), NaN where missing; `log_weights` are (n_components,) or
    (n_samples, n_components).
    """
    n_samples, n_components = numbers.shape[1], gaussians.means.shape[0]
    total = np.array(np.broadcast_to(log_weights, (n_samples, n_components)), order="C")
    _add_log_densities(*_prepare(numbers, gaussians), total)
    return total


def sum_gaussian_statistics(
    numbers: NDArray[Any], gaussians: Gaussians, weighted_posterior: Array
) -> dict[str, Array]:
    """Sum over rows times their posterior and weight.

    Returns
    -------
    dict
        `numbers`: Σ r; `deviations`: Σ r z; `squares`: Σ r z², over the rows with an observed
        value, (n_components, n_continuous) each.
    """
    sums = np.zeros((3, *gaussians.means.shape[::-1]))
    _add_statistics(*_prepare(numbers, gaussians), weighted_posterior, sums)
    return dict(zip(("numbers", "deviations", "squares"), np.swapaxes(sums, 1, 2), strict=True))


def update_gaussians(
    gaussians: Gaussians, sums: Mapping[str, NDArray[Any]], smoothing: float
) -> Gaussians:
    """Run the M-step, given the sums of `sum_gaussian_statistics`."""
    means, deviations = gaussians.means, gaussians.deviations
    gap, ratio = (
        (gaussians.overall_means - means) / deviations,
        gaussians.overall_deviations / deviations,
    )
    total = sums["numbers"] + smoothing
    shift = (sums["deviations"] + smoothing * gap) / total
    square = (sums["squares"] + smoothing * (gap**2 + ratio**2)) / total
    spread = deviations * np.sqrt(np.maximum(square - shift**2, 0.0))
    return replace(
        gaussians,
        means=means + deviations * shift,
        deviations=np.maximum(spread, MIN_DEVIATION * gaussians.overall_deviations),
    )


def compute_log_prior(gaussians: Gaussians) -> float:
    """Return the log prior divided by s, up to a constant."""
    ratio = gaussians.deviations / gaussians.overall_deviations
    gap = (gaussians.means - gaussians.overall_means) / gaussians.overall_deviations
    return float(-(np.log(ratio) + (gap**2 + 1) / (2 * ratio**2)).sum())


def find_bounded(gaussians: Gaussians) -> NDArray[np.bool_]:
    """Return which σ are at their lower bound, (n_components, n_continuous)."""
    bounded: NDArray[np.bool_] = (
        gaussians.deviations <= 1.0001 * MIN_DEVIATION * gaussians.overall_deviations
    )
    return bounded


def find_smoothed(gaussians: Gaussians, rows: Array, smoothing: float) -> NDArray[np.bool_]:
    """Return which σ come from the prior or the bound rather than from rows, like `rows`.

    `rows` are the effective numbers of rows with a value, Σ r, (n_components, n_continuous).
    """
    prior = smoothing * (
        gaussians.overall_deviations**2 + (gaussians.means - gaussians.overall_means) ** 2
    )
    by_prior = prior > 0.5 * (rows + smoothing) * gaussians.deviations**2
    smoothed: NDArray[np.bool_] = by_prior | find_bounded(gaussians)
    return smoothed


def find_collapsed(gaussians: Gaussians, rows: Array) -> NDArray[np.bool_]:
    """Return which σ of few rows are far below those of the other components, like `rows`.

    The likelihood of a normal distribution has no upper bound as σ decreases, so a component of a
    few rows that happen to be close together raises it without being a kind of rows.
    """
    squares = rows * gaussians.deviations**2
    others = squares.sum(axis=0) - squares
    n_others = rows.sum(axis=0) - rows
    is_small = gaussians.deviations**2 * n_others < _COLLAPSED**2 * others
    collapsed: NDArray[np.bool_] = is_small & (rows < _SOME_ROWS)
    return collapsed


def find_unsupported(gaussians: Gaussians, rows: Array) -> NDArray[np.bool_]:
    """Return which σ have collapsed or rest on very few rows, like `rows`."""
    return find_collapsed(gaussians, rows) | (rows < _FEW_ROWS)


def pack_gaussians(gaussians: Gaussians) -> Array:
    """Return means in units of the feature's deviation, then logarithms of deviations, flat."""
    means = (gaussians.means - gaussians.overall_means) / gaussians.overall_deviations
    return np.concatenate(
        [means.ravel(), np.log(gaussians.deviations / gaussians.overall_deviations).ravel()]
    )


def unpack_gaussians(packed: Array, gaussians: Gaussians, limit: float) -> Gaussians:
    """Undo `pack_gaussians`; logarithms are at most `limit` and at least that of the bound."""
    means, logs = packed.reshape(2, *gaussians.means.shape)
    ratio = np.exp(np.clip(logs, math.log(MIN_DEVIATION), limit))
    return replace(
        gaussians,
        means=gaussians.overall_means + gaussians.overall_deviations * means,
        deviations=gaussians.overall_deviations * ratio,
    )


def _prepare(
    numbers: NDArray[Any], gaussians: Gaussians
) -> tuple[NDArray[np.float32], Array, Array]:
    """Return contiguous numbers by row, (n_samples, n_continuous), and μ and σ by feature."""
    return (
        np.ascontiguousarray(numbers.T),
        np.ascontiguousarray(gaussians.means.T),
        np.ascontiguousarray(gaussians.deviations.T),
    )


@_kernel
def _add_log_densities(
    numbers: NDArray[np.float32], means: Array, deviations: Array, total: Array
) -> None:
    logs = np.log(deviations)
    for row in range(len(numbers)):
        for j in range(numbers.shape[1]):
            value = np.float64(numbers[row, j])
            if math.isnan(value):
                continue
            for k in range(total.shape[1]):
                z = (value - means[j, k]) / deviations[j, k]
                total[row, k] -= 0.5 * z * z + logs[j, k] + _HALF_LOG_TWO_PI


@_kernel
def _add_statistics(
    numbers: NDArray[np.float32], means: Array, deviations: Array, posterior: Array, sums: Array
) -> None:
    for row in range(len(numbers)):
        for j in range(numbers.shape[1]):
            value = np.float64(numbers[row, j])
            if math.isnan(value):
                continue
            for k in range(posterior.shape[1]):
                z = (value - means[j, k]) / deviations[j, k]
                share = posterior[row, k]
                sums[0, j, k] += share
                sums[1, j, k] += share * z
                sums[2, j, k] += share * z * z
