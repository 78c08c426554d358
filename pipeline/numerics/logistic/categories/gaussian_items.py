"""Continuous items: y ~ N(w·x + b, σ²) given the traits x.

An item has two linear forms: its mean η = w·x + b, and log σ, whose weights are 0. The values are
standardized, y = (value − mean) / scale; log-densities are those of the values as they are. At a
node x_l,

    log p(y | x_l) = y η_l / σ² − η_l² / 2σ² − y² / 2σ² − log(σ scale √2π).

The last two terms are the same at all nodes, so values can be next to the bits of other items in
the sums of `latent_nodes`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MIN_DEVIATION = 0.01
"""Lower bound of σ, in standard deviations of the values; else the likelihood may be infinite."""
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class GaussianItems(NamedTuple):
    """Continuous items.

    Attributes
    ----------
    weights, offsets, deviations
        w, (n, q), b and σ, (n,) each, of the standardized values.
    scales
        Scales of the values, (n,).
    """

    weights: Floats
    offsets: Floats
    deviations: Floats
    scales: Floats

    def to_forms(self) -> Floats:
        """Return weights and offset of η and of log σ of each item, (2 n, q + 1)."""
        means = np.column_stack([self.weights, self.offsets])
        spreads = np.zeros_like(means)
        spreads[:, -1] = np.log(self.deviations)
        return np.stack([means, spreads], axis=1).reshape(-1, means.shape[1])

    def with_forms(self, forms: Floats) -> GaussianItems:
        """Return items with these forms, (2 n, q + 1); σ is at least its lower bound."""
        means, spreads = forms[::2], forms[1::2]
        deviations = np.exp(np.maximum(spreads[:, -1], math.log(MIN_DEVIATION)))
        return GaussianItems(means[:, :-1].copy(), means[:, -1].copy(), deviations, self.scales)

    def compute_means(self, points: Floats) -> Floats:
        """Return η at points, (n, n_points)."""
        eta: Floats = self.weights @ points.T + self.offsets[:, None]
        return eta

    def compute_information(self) -> Floats:
        """Return the Fisher information of each item about x, (n, q, q)."""
        scaled = self.weights / self.deviations[:, None]
        information: Floats = scaled[:, :, None] * scaled[:, None]
        return information

    def tabulate(self, points: Floats) -> tuple[Floats, Floats]:
        """Return what a value of 1, and each observed value, adds to log p, (n, n_points) each.

        The terms that are the same at all points are left out; see `sum_common_terms`.
        """
        eta, precision = self.compute_means(points), self.deviations[:, None] ** -2
        return precision * eta, -0.5 * precision * eta**2

    def sum_common_terms(self, y: Floats, mask: NDArray[np.uint8] | None) -> Floats:
        """Return the terms of log p of rows that are the same at all points, (n_samples,).

        `y` are the values, (n_samples, n), 0 where missing; `mask` is None if none is.
        """
        constants = np.log(self.deviations * self.scales) + _HALF_LOG_TWO_PI
        total = -0.5 * (y / self.deviations) ** 2
        total -= constants if mask is None else mask * constants
        # A sum along rows whose bits do not depend on the other rows.
        return np.asarray(total.sum(axis=1))

    def differentiate_rows(self, y: Floats, mask: Floats, x: Floats) -> tuple[Floats, Floats]:
        """Return ∂ log p / ∂(η, log σ), (n_rows, 2 n, n_points), and Σ log p, (n_rows, n_points).

        Each row has its own points x, (n_rows, n_points, q), and the mask has numbers 0 and 1. The
        terms of `sum_common_terms` are left out.
        """
        eta = np.einsum("iq,nkq->nik", self.weights, x) + self.offsets[:, None]
        residual, precision = y[:, :, None] - eta, self.deviations[:, None] ** -2
        squares = precision * residual**2
        derivatives = mask[:, :, None, None] * np.stack([precision * residual, squares - 1], axis=2)
        log_p = -0.5 * (mask[:, :, None] * squares).sum(axis=1)
        return derivatives.reshape(len(y), -1, x.shape[1]), log_p

    def score_rows(self, y: Floats, mask: Floats, mean: Floats, covariance: Floats) -> Floats:
        """Return E[∂ log p / ∂ forms] of rows with these moments of x, (n_rows, 2 n (q + 1))."""
        extended = np.column_stack([mean, np.ones(len(mean))])
        squares = extended[:, :, None] * extended[:, None]
        squares[:, :-1, :-1] += covariance
        beta, precision = np.column_stack([self.weights, self.offsets]), self.deviations**-2
        products = squares @ beta.T  # E[η x̂], (n_rows, q + 1, n)
        eta, eta_squared = extended @ beta.T, np.einsum("iq,nqi->ni", beta, products)
        scores = np.zeros((*y.shape, 2, beta.shape[1]))
        scores[:, :, 0] = y[:, :, None] * extended[:, None] - products.swapaxes(1, 2)
        scores[:, :, 1, -1] = y**2 - 2 * y * eta + eta_squared
        scores *= (mask * precision)[:, :, None, None]
        scores[:, :, 1, -1] -= mask
        return scores.reshape(len(y), -1)


class GaussianSums(NamedTuple):
    """Sums over rows, with their responsibilities R for nodes.

    Attributes
    ----------
    values, mass
        Σ y R and Σ R over the rows with a value, (n, n_nodes) each.
    squares
        Σ y², (n,).
    """

    values: Floats
    mass: Floats
    squares: Floats


def expect_log_likelihood(items: GaussianItems, points: Floats, sums: GaussianSums) -> Floats:
    """Return the expected log-likelihood of each item up to constants, (n,)."""
    n_values = sums.mass.sum(axis=1)
    squares = _sum_squared_residuals(items, points, sums)
    return np.asarray(-0.5 * squares / items.deviations**2 - n_values * np.log(items.deviations))


def sum_gaussian_gradient(items: GaussianItems, points: Floats, sums: GaussianSums) -> Floats:
    """Return the gradient of the expected log-likelihood in all forms, (2 n (q + 1),)."""
    precision = items.deviations**-2
    extended = np.column_stack([points, np.ones(len(points))])
    gradient = np.zeros((len(precision), 2, extended.shape[1]))
    residuals = sums.values - sums.mass * items.compute_means(points)
    gradient[:, 0] = precision[:, None] * (residuals @ extended)
    squares = _sum_squared_residuals(items, points, sums)
    gradient[:, 1, -1] = precision * squares - sums.mass.sum(axis=1)
    return gradient.reshape(-1)


def sum_gaussian_curvature(
    items: GaussianItems, points: Floats, sums: GaussianSums, is_expected: bool
) -> Floats:
    """Return minus the second derivatives in the forms of each item, (n, 2 (q + 1), 2 (q + 1)).

    With `is_expected`, they are replaced by their mean given x, the Fisher information.
    """
    precision = items.deviations**-2
    extended = np.column_stack([points, np.ones(len(points))])
    width = extended.shape[1]
    products = (extended[:, :, None] * extended[:, None]).reshape(len(points), -1)
    curvature = np.zeros((len(precision), 2 * width, 2 * width))
    curvature[:, :width, :width] = precision[:, None, None] * (sums.mass @ products).reshape(
        -1, width, width
    )
    if is_expected:
        curvature[:, -1, -1] = 2 * sums.mass.sum(axis=1)
        return curvature
    residuals = sums.values - sums.mass * items.compute_means(points)
    across = 2 * precision[:, None] * (residuals @ extended)
    curvature[:, :width, -1] = curvature[:, -1, :width] = across
    curvature[:, -1, -1] = 2 * precision * _sum_squared_residuals(items, points, sums)
    return curvature


def _sum_squared_residuals(items: GaussianItems, points: Floats, sums: GaussianSums) -> Floats:
    """Return Σ E[(y − η)²], (n,)."""
    eta = items.compute_means(points)
    return np.asarray(sums.squares + ((sums.mass * eta - 2 * sums.values) * eta).sum(axis=1))
