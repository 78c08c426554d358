"""Standard errors of the mixture, from the observed information (T. A. Louis, 1982).

Let π_nk = softmax_k(Σ_j z_nj β_kj) be the class weights of row n with the predictors z_n, r_k =
P(k | x), u_ki = m_i (x_i − p_ki), where m is the mask, and v_k = (u_k, z). The score of a row is
((r_k u_k), (r_k − π_k) z)_k in the log-odds λ_ki of p_ki and the coefficients β_k. The information
is Σ_n diag(r_k m_i p_ki (1 − p_ki)) for λ and Σ_n (diag π − π πᵀ) ⊗ z zᵀ for β, minus the
covariance of the component scores, diag_k(r_k v_k v_kᵀ) − (r_k v_k)(r_k v_k)ᵀ. Without groups, z
is 1 and β are log-weights.

A continuous feature j adds m_j z and m_j (z² − 1) to u_k, where z = (x_j − μ_kj) / σ_kj: the scores
of μ_kj in units of σ_kj, and of log σ_kj. The information is Σ_n r_k m_j and 2 Σ_n r_k m_j. A σ at
its lower bound is taken as known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.executors.cancellation import check_cancelled
from pipeline.models.bernoulli_mixture.gaussians import (
    GaussianErrors,
    Gaussians,
    find_bounded,
)
from pipeline.models.bernoulli_mixture.levels import (
    compute_contrast_errors,
    compute_difference_errors,
    compute_level_errors,
)
from pipeline.numerics.information import invert_information

ErrorForm = Literal["louis", "crossproduct", "sandwich"]

_BATCH_ENTRIES = 2**20
_MIN_INFORMATION = 0.01  # of log-odds in rows


class MixtureRows(NamedTuple):
    """Rows, their classes, and what their class weights depend on.

    Attributes
    ----------
    X, observed
        Values and mask, (n_samples, n_features); the mask is None if all values are observed.
    numbers
        Values of continuous features, (n_samples, n_continuous), NaN where missing.
    row_weights
        Weight of each row, (n_samples,).
    posterior, class_weights
        P(k | x) and π of each row, (n_samples, n_components).
    predictors
        z, (n_samples, n_predictors).
    """

    X: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    numbers: NDArray[Any]
    row_weights: Array
    posterior: Array
    class_weights: Array
    predictors: Array


class MixtureErrors(NamedTuple):
    """Standard errors, and the ends of 95 % intervals of probabilities.

    Shapes: `probabilities` (n_components, n_features), `interval` (2, n_components, n_features).
    `coefficients` is the covariance of β relative to the last component, (n_components,
    n_predictors, n_components, n_predictors). `levels` are the errors of the probabilities of
    levels, (n_components, n_levels in all). `gaussians` are the errors of means and standard
    deviations; None without any. All of them are NaN for parameters that the rows do not
    determine; without any, `is_identified` is true. `contrasts`, (n_components, n_components,
    n_contrasts), are the errors of differences between components: of `compute_contrast_errors`,
    then of the means of continuous features.
    """

    probabilities: Array
    interval: Array
    levels: Array
    coefficients: Array
    gaussians: GaussianErrors | None
    is_identified: bool
    contrasts: Array


def sum_mixture_information(
    rows: MixtureRows, probabilities: Array, gaussians: Gaussians | None
) -> dict[str, Array]:
    """Compute the sums of the information over rows times their weights.

    Returns
    -------
    dict
        `values`: Σ r_k m_i, (n_components, n_scores), where n_scores = n_features + 2
        n_continuous; `spread`: Σ r_k v_k v_kᵀ, (n_components, width, width) with width = n_scores +
        n_predictors; `products`: Σ (r_k v_k)_k (r_k v_k)_kᵀ, (n_components width, n_components
        width).
    """
    n_components = len(probabilities)
    n_scores = probabilities.shape[1] + 2 * _count_numbers(gaussians)
    width = n_scores + rows.predictors.shape[1]
    values = np.zeros((n_components, n_scores))
    spread = np.zeros((n_components, width, width))
    products = np.zeros((n_components * width,) * 2)
    for batch, mask, v, r in _iter_score_vectors(rows, probabilities, gaussians):
        weighted = r * rows.row_weights[batch]
        values += weighted @ mask
        spread += np.swapaxes(v * weighted[:, :, None], 1, 2) @ v
        expected = np.moveaxis(v * r[:, :, None], 0, 1).reshape(len(mask), -1)
        products += (expected * rows.row_weights[batch, None]).T @ expected
    return {"values": values, "spread": spread, "products": products}


def iter_mixture_scores(
    rows: MixtureRows, probabilities: Array, gaussians: Gaussians | None
) -> Iterator[tuple[slice, Array]]:
    """Yield ranges of rows, and their scores times their weights, (n_rows, p)."""
    n_scores = probabilities.shape[1] + 2 * _count_numbers(gaussians)
    for batch, mask, v, r in _iter_score_vectors(rows, probabilities, gaussians):
        scores = v * r[:, :, None]
        expected = rows.class_weights[batch].T[:, :, None] * rows.predictors[batch]
        scores[:, :, n_scores:] -= expected
        flat = np.moveaxis(scores, 0, 1).reshape(len(mask), -1)
        yield batch, flat * rows.row_weights[batch, None]


def _iter_score_vectors(
    rows: MixtureRows, probabilities: Array, gaussians: Gaussians | None
) -> Iterator[tuple[slice, Array, Array, Array]]:
    """Yield rows, their mask, v, (n_components, n_rows, width), and r, (n_components, n_rows).

    The mask has a column for each score of a feature, (n_rows, n_scores).
    """
    n_components, n_features = probabilities.shape
    n_numbers = _count_numbers(gaussians)
    n_scores = n_features + 2 * n_numbers
    width = n_scores + rows.predictors.shape[1]
    height = max(1, _BATCH_ENTRIES // (n_components * width))
    for start in range(0, len(rows.X), height):
        check_cancelled()
        batch = slice(start, start + height)
        X = rows.X[batch]
        mask = np.ones(X.shape) if rows.observed is None else rows.observed[batch].astype(float)
        v = np.empty((n_components, len(mask), width))
        v[:, :, :n_features] = mask * (X - probabilities[:, None])
        v[:, :, n_scores:] = rows.predictors[batch]
        if gaussians is not None:
            numbers = rows.numbers[batch].astype(np.float64)
            is_observed = ~np.isnan(numbers)
            numbers = np.where(is_observed, numbers, 0.0)
            z = (numbers - gaussians.means[:, None]) / gaussians.deviations[:, None]
            v[:, :, n_features : n_features + n_numbers] = is_observed * z
            v[:, :, n_features + n_numbers : n_scores] = is_observed * (z**2 - 1)
            mask = np.hstack([mask, is_observed, is_observed])
        yield batch, mask, v, rows.posterior[batch].T


def _count_numbers(gaussians: Gaussians | None) -> int:
    """Return the number of continuous features."""
    return 0 if gaussians is None else gaussians.means.shape[1]


def compute_mixture_errors(
    probabilities: Array,
    gaussians: Gaussians | None,
    curvature: Array,
    sums: Mapping[str, NDArray[Any]],
    pseudo_counts: Array,
    form: ErrorForm,
    n_levels: NDArray[np.int64],
) -> MixtureErrors:
    """Invert the information.

    Parameters
    ----------
    probabilities
        p, (n_components, n_features); with several levels, the continuation probabilities of
        planes, see `levels.py`.
    gaussians
        Continuous features; None without any.
    curvature
        Information about β if the classes were known, with that of the prior, (n_components,
        n_predictors, n_components, n_predictors).
    sums
        The result of `sum_mixture_information` for all rows. `score_products`, (p, p), are the
        products of the scores of rows or clusters, which only the other forms than `louis` need.
    pseudo_counts
        Pseudo-counts of each score, (n_scores,), which add information like rows: of ones and
        zeros together, and of values of continuous features.
    form
        Whether the covariance of the estimates is the inverse of the observed information
        (`louis`) or of the products of scores (`crossproduct`), or the sandwich of both.
    n_levels
        Number of levels of each feature, 2 of a binary one.
    """
    n_components, n_features = probabilities.shape
    n_predictors, n_numbers = curvature.shape[1], _count_numbers(gaussians)
    n_scores = n_features + 2 * n_numbers
    width = n_scores + n_predictors
    information, diagonal = compute_information(
        probabilities, gaussians, curvature, sums, pseudo_counts
    )
    places = np.arange(n_components * width).reshape(n_components, width)[:, n_scores:]
    block = np.ix_(places.ravel(), places.ravel())
    is_fixed = np.zeros((n_components, width), np.bool_)
    if gaussians is not None:
        is_fixed[:, n_features + n_numbers : n_scores] = find_bounded(gaussians)
    if form == "crossproduct":
        information = sums["score_products"]
        # Scores of log-odds at the boundary are 0 but for rounding.
        is_fixed[:, :n_scores] |= diagonal < _MIN_INFORMATION
    # Coefficients are determined up to a constant, so those of the last component are fixed.
    fixed = np.union1d(places[-1], np.flatnonzero(is_fixed))
    directions = np.delete(np.eye(len(information)), fixed, axis=1)
    inverse = invert_information(information, directions)
    covariance = inverse.covariance
    if form == "sandwich":
        covariance = covariance @ sums["score_products"] @ covariance
    errors = np.sqrt(np.diag(covariance)).reshape(n_components, width)
    unidentified = inverse.find_unidentified((n_components, width, 1))
    unknown = unidentified | is_fixed
    without_error = np.flatnonzero(unidentified)
    is_identified = not without_error.size
    numbers = None
    if gaussians is not None:
        by_number = np.where(unknown, np.nan, errors)[:, n_features:n_scores]
        own_errors = by_number.reshape(n_components, 2, n_numbers) * gaussians.deviations[:, None]
        numbers = GaussianErrors(own_errors[:, 0], own_errors[:, 1])
    own_covariance = covariance.copy()
    own_covariance[without_error], own_covariance[:, without_error] = np.nan, np.nan
    coefficients = own_covariance[block].reshape(curvature.shape)
    by_component = covariance.reshape(n_components, width, n_components, width)
    own = np.stack([by_component[k, :n_features, k, :n_features] for k in range(n_components)])
    found = compute_level_errors(probabilities, own, unknown[:, :n_features], n_levels)
    own = by_component[:, :n_features, :, :n_features]
    contrasts = compute_contrast_errors(probabilities, own, unknown[:, :n_features], n_levels)
    if gaussians is not None:
        places = np.arange(n_features, n_features + n_numbers)
        own = np.moveaxis(by_component[:, places, :, places], 0, 2)
        own = own * gaussians.deviations[:, None] * gaussians.deviations
        means = compute_difference_errors(own, unknown[:, places])
        contrasts = np.concatenate([contrasts, means], axis=2)
    return MixtureErrors(*found, coefficients, numbers, is_identified, contrasts)


def compute_information(
    probabilities: Array,
    gaussians: Gaussians | None,
    curvature: Array,
    sums: Mapping[str, NDArray[Any]],
    pseudo_counts: Array,
) -> tuple[Array, Array]:
    """Return the observed information, (p, p), given parameters as for `compute_mixture_errors`.

    Also return the information about the scores of features if the classes were known,
    (n_components, n_scores).
    """
    n_components, n_numbers = len(probabilities), _count_numbers(gaussians)
    variances = probabilities * (1 - probabilities)
    ones = np.ones((n_components, n_numbers))
    complete = (sums["values"] + pseudo_counts) * np.hstack([variances, ones, 2 * ones])
    diagonal = np.hstack([complete, np.zeros((n_components, curvature.shape[1]))])
    information = np.diag(diagonal.ravel()) - scipy.linalg.block_diag(*sums["spread"])
    information += sums["products"]
    n_scores, width = complete.shape[1], diagonal.shape[1]
    places = np.arange(n_components * width).reshape(n_components, width)[:, n_scores:]
    information[np.ix_(places.ravel(), places.ravel())] += curvature.reshape((places.size,) * 2)
    return information, complete


def propagate_errors(gradients: Array, covariance: Array) -> Array:
    """Return standard errors, (...), given gradients (..., n_components, n_predictors)."""
    products = np.tensordot(gradients, covariance, axes=2)
    variances = (products * gradients).sum(axis=(-2, -1))
    errors: Array = np.sqrt(np.maximum(variances, 0.0))
    return errors
