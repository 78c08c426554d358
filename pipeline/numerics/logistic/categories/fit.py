"""How well the answers of rows fit their codes.

Residuals are those of the scores 0, …, m of the levels, as in the rating scale model (B. D. Wright,
G. N. Masters, "Rating scale analysis", 1982). With a single plane they are those of a binary item.
Those of a continuous item are y − w·x − b.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.logistic.asymptotes import Asymptotes
from pipeline.numerics.logistic.categories.curves import (
    Answers,
    ItemsAlike,
    LevelItems,
    count_levels_at_nodes,
    iter_alike,
)
from pipeline.numerics.logistic.latent_nodes import RowPosterior

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

_MIN_SPREAD = 1e-9
_TINY = np.finfo(np.float64).tiny
_BATCH_ENTRIES = 2**16  # planes of rows: 512 KiB per array


class PersonFit(NamedTuple):
    """How well the answers of each row fit its code, (n_samples,) each.

    Attributes
    ----------
    l_z
        Standardized log-likelihood at the code (F. Drasgow, M. V. Levine, E. A. Williams, British
        Journal of Mathematical and Statistical Psychology 38, 1985); low values are misfit. As the
        code is an estimate, its variance is below 1.
    l_z_star
        l_z with the mean and variance that it has at an estimated code, so that it is about normal
        (T. A. B. Snijders, Psychometrika 66, 2001; for several traits: J. Albers, R. Meijer, J.
        Tendeiro, Frontiers in Psychology 7, 2016).
    infit, outfit
        Mean squared residuals at the code, weighted by information and unweighted; about 1 if the
        answers fit.
    """

    l_z: Floats
    infit: Floats
    outfit: Floats
    l_z_star: Floats


class LevelAnswers(NamedTuple):
    """Answers of some rows to items with the same number of levels m + 1.

    Attributes
    ----------
    rows, alike
        The rows and the items.
    eta
        Forms of all items at the codes, (n_planes, n_rows).
    levels
        Which level a row has, (n, m + 1, n_rows); none where a value is missing.
    P
        Probabilities of the levels, as `levels`.
    """

    rows: slice
    alike: ItemsAlike
    eta: Floats
    levels: Floats
    P: Floats

    def compute_residuals(self) -> tuple[Floats, Floats, Floats]:
        """Return the mask, squared residuals of observed scores, and variances, (n, n_rows)."""
        if self.P.shape[1] == 2:  # much faster
            (zeros, ones), (Q, P) = np.moveaxis(self.levels, 1, 0), np.moveaxis(self.P, 1, 0)
            mask = zeros + ones
            return mask, mask * (ones - P) ** 2, np.maximum(P * Q, _TINY)
        scores = np.arange(self.P.shape[1])[:, None]
        mask, expected = self.levels.sum(axis=1), (scores * self.P).sum(axis=1)
        squares = mask * ((scores * self.levels).sum(axis=1) - expected) ** 2
        variance = (self.P * (scores - expected[:, None]) ** 2).sum(axis=1)
        return mask, squares, np.maximum(variance, _TINY)


def iter_answers(
    X: Answers, observed: Bits | None, items: LevelItems, codes: Floats
) -> Iterator[LevelAnswers]:
    """Yield the answers of portions of the rows, by items with equal numbers of levels."""
    n = len(items.offsets)
    height = max(1, _BATCH_ENTRIES // max(n, 1))
    for start in range(0, len(X), height):
        rows = slice(start, min(start + height, len(X)))
        ones = X[rows, :n].T.astype(np.float64)
        mask = np.ones_like(ones) if observed is None else observed[rows, :n].T.astype(np.float64)
        ones *= mask
        eta = items.compute_forms(codes[rows])
        for alike in iter_alike(items.n_planes):
            if alike.planes.shape[1] > 1:
                P = np.exp(items.compute_log_probabilities(eta, alike))
            else:
                P = _compute_binary_probabilities(eta[alike.planes[:, 0]], items.asymptotes)
            levels = count_levels_at_nodes(ones, mask, alike)
            yield LevelAnswers(rows, alike, eta, levels, P)


def _compute_binary_probabilities(eta: Floats, asymptotes: Asymptotes | None) -> Floats:
    """Return Q and P, (n, 2, n_rows), faster than `expit` computes σ(−η) and σ(η)."""
    small, P = np.exp(-np.abs(eta)), np.empty((len(eta), 2, eta.shape[1]))
    large = 1 / (1 + small)
    small *= large
    is_positive = eta > 0
    P[:, 0], P[:, 1] = np.where(is_positive, small, large), np.where(is_positive, large, small)
    if asymptotes is not None:
        lowest = np.stack([asymptotes.slipping, asymptotes.guessing], axis=1)[:, :, None]
        P = lowest + (1 - lowest.sum(axis=1, keepdims=True)) * P
    return P


class NumberAnswers(NamedTuple):
    """Mask and standardized residuals of continuous items, (n_samples, n_continuous) each."""

    mask: Floats
    z: Floats

    @classmethod
    def from_rows(
        cls, X: Answers, observed: Bits | None, items: LevelItems, codes: Floats
    ) -> NumberAnswers:
        """Compare the values of rows with those expected at their codes; 0 where missing."""
        n, gaussians = len(items.offsets), items.gaussians
        values = X[:, n:].astype(np.float64)
        mask = np.ones_like(values) if observed is None else observed[:, n:].astype(np.float64)
        if gaussians is None:
            return cls(mask, values)
        z = (values - gaussians.compute_means(codes).T) / gaussians.deviations
        return cls(mask, mask * z)


def sum_residuals(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    posterior: RowPosterior,
    row_weights: Floats | None = None,
) -> dict[str, Floats]:
    """Sum the moments of the codes, and the squared residuals of each item at the codes."""
    mean = posterior.mean
    weights = np.ones(len(X)) if row_weights is None else row_weights
    sums = np.zeros((4, len(items.n_planes)))
    for answers in iter_answers(X, observed, items, mean):
        mask, squares, variance = answers.compute_residuals()
        for total, part in zip(
            sums, (mask, squares, mask * variance, squares / variance), strict=True
        ):
            total[answers.alike.features] += part @ weights[answers.rows]
    if items.gaussians is not None:
        numbers = NumberAnswers.from_rows(X, observed, items, mean)
        own, variance = items.n_planes == 0, items.gaussians.deviations**2
        n_values, squares = weights @ numbers.mask, weights @ numbers.z**2
        sums[:, own] = n_values, squares * variance, n_values * variance, squares
    names = ("observed", "squares", "variances", "squares_standardized")
    return {
        "weight_informing": np.array(weights.sum()),
        "codes": weights @ mean,
        "codes_squared": (mean * weights[:, None]).T @ mean,
        "codes_variance": np.tensordot(weights, posterior.covariance, 1),
        **dict(zip(names, sums, strict=True)),
    }


def compute_person_fit(
    X: Answers, observed: Bits | None, items: LevelItems, codes: Floats
) -> PersonFit:
    """Compare the answers of each row with the probabilities at its code.

    Rows whose answers are all certain, or that have none, fit: both l_z are 0, the others 1.

    Parameters
    ----------
    X, observed
        As for `compute_row_posterior`.
    items
        The items.
    codes
        Codes of the rows, (n_samples, q).
    """
    n, q = codes.shape
    # Sums over the items of a row.
    residuals, variance, n_values, squares, spread, standardized = np.zeros((6, n))
    score, moments, information = np.zeros((n, q)), np.zeros((n, q)), np.zeros((n, q * q))
    for answers in iter_answers(X, observed, items, codes):
        rows, alike, P = answers.rows, answers.alike, answers.P
        log_p = np.log(np.maximum(P, _TINY))
        mask, own_squares, own_variance = answers.compute_residuals()
        expected = (P * log_p).sum(axis=1)
        residuals[rows] += ((answers.levels * log_p).sum(axis=1) - mask * expected).sum(axis=0)
        P = P * mask[:, None]
        variance[rows] += (P * (log_p - expected[:, None]) ** 2).sum(axis=(0, 1))
        n_values[rows] += mask.sum(axis=0)
        squares[rows] += own_squares.sum(axis=0)
        spread[rows] += (mask * own_variance).sum(axis=0)
        standardized[rows] += (own_squares / own_variance).sum(axis=0)
        first = items.differentiate(answers.eta, alike)  # ∂ log P_c / ∂ η_j
        for j in range(first.shape[2]):
            weights, slopes = items.weights[alike.planes[:, j]], P * first[:, :, j]
            score[rows] += (answers.levels * first[:, :, j]).sum(axis=1).T @ weights
            moments[rows] += (slopes * log_p).sum(axis=1).T @ weights
            for k in range(first.shape[2]):
                others = items.weights[alike.planes[:, k]]
                products = (weights[:, :, None] * others[:, None]).reshape(-1, q * q)
                information[rows] += (slopes * first[:, :, k]).sum(axis=1).T @ products
    information = information.reshape(n, q, q)
    if (gaussians := items.gaussians) is not None:
        numbers = NumberAnswers.from_rows(X, observed, items, codes)
        mask, z_squared = numbers.mask, numbers.z**2
        # log p is its mean + ½ − z² / 2 with a standard normal z, whose variance is ½.
        residuals += (0.5 * (mask - z_squared)).sum(axis=1)
        variance += 0.5 * mask.sum(axis=1)
        n_values += mask.sum(axis=1)
        squares += z_squared @ gaussians.deviations**2
        spread += mask @ gaussians.deviations**2
        standardized += z_squared.sum(axis=1)
        per_sd = gaussians.weights / gaussians.deviations[:, None]
        score += numbers.z @ per_sd  # z² and z are uncorrelated
        information += np.einsum("ni,ia,ib->nab", mask, per_sd, per_sd)
    shift = _solve_for_shift(information, moments)
    own_residuals = residuals - (shift * score).sum(axis=1)
    own_spread = variance - (shift * moments).sum(axis=1)
    return PersonFit(
        residuals / np.sqrt(np.where(variance > 0, variance, np.inf)),
        np.where(spread > 0, squares / np.maximum(spread, _TINY), 1.0),
        np.where(n_values > 0, standardized / np.maximum(n_values, 1), 1.0),
        _standardize(own_residuals, own_spread, variance),
    )


def _solve_for_shift(information: Floats, score_moments: Floats) -> Floats:
    """Return c = I⁻¹ Cov(log-likelihood, score) of each row, (n_samples, q).

    The log-likelihood minus c times the score does not depend, to first order, on the estimate of
    the traits. The arguments are I, (n_samples, q, q), and the covariances, (n_samples, q).
    """
    inverse = np.linalg.pinv(information, hermitian=True)
    return np.asarray(np.einsum("nab,nb->na", inverse, score_moments))


def _standardize(residuals: Floats, spread: Floats, variance: Floats) -> Floats:
    """Divide by the root of `spread`; 0 where it is nothing of `variance`, (n_samples,) each."""
    is_spread = spread > _MIN_SPREAD * variance
    return np.where(is_spread, residuals / np.sqrt(np.where(is_spread, spread, 1.0)), 0.0)
