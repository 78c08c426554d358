"""Continuous items: y ~ N(w·x + b, σ²) given the traits x.

An item has two linear forms: its mean η = w·x + b, and log σ, whose weights are 0. The values are
standardized, y = (value − mean) / scale; log-densities are those of the values as they are. At a
node x_l,

    log p(y | x_l) = y η_l / σ² − η_l² / 2σ² − y² / 2σ² − log(σ scale √2π).

The last two terms are the same at all nodes, so values can be next to the bits of other items in
the sums of `latent_nodes`. Given only continuous items, the posterior of x is normal, see
`GaussianItems.condition`. The sums of the M-step are moments of x, so they need no nodes.
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


class ConditionalGaussians(NamedTuple):
    """Normal posteriors of rows given their continuous values.

    Attributes
    ----------
    mean, precision
        (n_rows, q) and (n_rows, q, q).
    log_density
        log p of the values of each row, (n_rows,).
    """

    mean: Floats
    precision: Floats
    log_density: Floats


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

    def condition(self, y: Floats, mask: Floats, row_means: Floats) -> ConditionalGaussians:
        """Return the posterior of x given the values, with the priors N(m_n, I).

        `y` and `mask` are as for `differentiate_rows`, and `row_means` m_n, (n_rows, q). The bits
        of a row's result depend on that row alone.
        """
        q, precision = self.weights.shape[1], mask * self.deviations**-2
        products = self.weights[:, :, None] * self.weights[:, None]
        information = np.eye(q) + np.einsum("ni,iab->nab", precision, products)
        residuals = y - mask * self.offsets
        linear = row_means + np.einsum("ni,ia->na", precision * residuals, self.weights)
        mean = np.linalg.solve(information, linear[:, :, None])[:, :, 0]
        left = residuals - mask * np.einsum("na,ia->ni", mean, self.weights)
        constants = mask * (np.log(self.deviations * self.scales) + _HALF_LOG_TWO_PI)
        log_density = -(0.5 * precision * left**2 + constants).sum(axis=1)
        log_density -= 0.5 * ((mean - row_means) ** 2).sum(axis=1)
        log_density -= 0.5 * np.linalg.slogdet(information)[1]
        return ConditionalGaussians(mean, information, log_density)

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
    """Sums over rows, with m the mask of values and x̂ = (x, 1).

    Attributes
    ----------
    codes
        Σ y ⟨x̂⟩, (n, q + 1).
    products
        Σ m ⟨x̂ x̂ᵀ⟩, (n, q + 1, q + 1).
    squares
        Σ y², (n,).
    """

    codes: Floats
    products: Floats
    squares: Floats


def sum_gaussian_moments(
    y: Floats, mask: Floats, mean: Floats, covariance: Floats, row_weights: Floats
) -> GaussianSums:
    """Sum over rows with these moments of x, and weights, (n_rows,).

    `y` are the values, (n_rows, n), 0 where missing; the mask has numbers 0 and 1.
    """
    extended = np.column_stack([mean, np.ones(len(mean))])
    squares = extended[:, :, None] * extended[:, None]
    squares[:, :-1, :-1] += covariance
    width, weighted = extended.shape[1], row_weights[:, None]
    products = (weighted * mask).T @ squares.reshape(-1, width**2)
    return GaussianSums(
        (weighted * y).T @ extended, products.reshape(-1, width, width), row_weights @ y**2
    )


def expect_log_likelihood(items: GaussianItems, sums: GaussianSums) -> Floats:
    """Return the expected log-likelihood of each item up to constants, (n,)."""
    squares, n_values = _sum_squared_residuals(items, sums), sums.products[:, -1, -1]
    return np.asarray(-0.5 * squares / items.deviations**2 - n_values * np.log(items.deviations))


def sum_gaussian_gradient(items: GaussianItems, sums: GaussianSums) -> Floats:
    """Return the gradient of the expected log-likelihood in all forms, (2 n (q + 1),)."""
    precision, residuals = items.deviations**-2, _sum_residuals(items, sums)
    gradient = np.zeros((len(precision), 2, residuals.shape[1]))
    gradient[:, 0] = precision[:, None] * residuals
    squares = _sum_squared_residuals(items, sums)
    gradient[:, 1, -1] = precision * squares - sums.products[:, -1, -1]
    return gradient.reshape(-1)


def sum_gaussian_curvature(items: GaussianItems, sums: GaussianSums, is_expected: bool) -> Floats:
    """Return minus the second derivatives in the forms of each item, (n, 2 (q + 1), 2 (q + 1)).

    With `is_expected`, they are replaced by their mean given x, the Fisher information.
    """
    precision, width = items.deviations**-2, sums.codes.shape[1]
    curvature = np.zeros((len(precision), 2 * width, 2 * width))
    curvature[:, :width, :width] = precision[:, None, None] * sums.products
    if is_expected:
        curvature[:, -1, -1] = 2 * sums.products[:, -1, -1]
        return curvature
    across = 2 * precision[:, None] * _sum_residuals(items, sums)
    curvature[:, :width, -1] = curvature[:, -1, :width] = across
    curvature[:, -1, -1] = 2 * precision * _sum_squared_residuals(items, sums)
    return curvature


def _sum_residuals(items: GaussianItems, sums: GaussianSums) -> Floats:
    """Return Σ E[(y − η) x̂], (n, q + 1)."""
    beta = np.column_stack([items.weights, items.offsets])
    return np.asarray(sums.codes - np.einsum("iab,ib->ia", sums.products, beta))


def _sum_squared_residuals(items: GaussianItems, sums: GaussianSums) -> Floats:
    """Return Σ E[(y − η)²], (n,)."""
    beta = np.column_stack([items.weights, items.offsets])
    squares = sums.squares - ((sums.codes + _sum_residuals(items, sums)) * beta).sum(axis=1)
    return np.asarray(np.maximum(squares, 0.0))  # differences of rounded sums
