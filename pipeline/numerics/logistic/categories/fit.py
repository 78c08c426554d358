"""How well the answers of rows to items with several levels, or continuous ones, fit their codes.

Residuals are those of the scores 0, …, m of the levels, as in the rating scale model (B. D. Wright,
G. N. Masters, "Rating scale analysis", 1982). With a single plane they are those of a binary item.
Those of a continuous item are y − w·x − b.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from pipeline.numerics.logistic.categories.curves import (
    Answers,
    LevelItems,
    compute_level_probabilities,
    iter_alike,
)
from pipeline.numerics.logistic.categories.row_posteriors import RowAnswers, split_answers
from pipeline.numerics.logistic.information import PersonFit, solve_for_shift, standardize
from pipeline.numerics.logistic.trait_scores import HasMoments

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

_TINY = np.finfo(np.float64).tiny
_STEP = 1e-4  # of the traits, for derivatives


def _compute_residuals(
    answers: RowAnswers, items: LevelItems, codes: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the mask, the squared residuals and their variances, (n_samples, n_features) each."""
    P, levels = compute_level_probabilities(items, codes), answers.levels
    shape = (len(codes), len(items.n_planes))
    mask, squares, variance = np.empty(shape), np.empty(shape), np.empty(shape)
    for alike in iter_alike(items.n_planes):
        scores = np.arange(alike.levels.shape[1])
        own, present = P[:, alike.levels], levels[:, alike.levels]
        expected = own @ scores
        mask[:, alike.features] = present.sum(axis=2)
        squares[:, alike.features] = present.sum(axis=2) * (present @ scores - expected) ** 2
        variance[:, alike.features] = (own * (scores - expected[:, :, None]) ** 2).sum(axis=2)
    if (gaussians := items.gaussians) is not None:
        is_own, residuals = items.n_planes == 0, answers.values - gaussians.compute_means(codes).T
        mask[:, is_own], squares[:, is_own] = answers.mask, answers.mask * residuals**2
        variance[:, is_own] = gaussians.deviations**2
    return mask, squares, np.maximum(variance, _TINY)


def sum_level_residuals(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    posterior: HasMoments,
    row_weights: Floats | None = None,
) -> dict[str, Floats]:
    """Sum the moments of the codes, and the squared residuals of each item at the codes."""
    mean = posterior.mean
    weights = np.ones(len(X)) if row_weights is None else row_weights
    mask, squares, variance = _compute_residuals(split_answers(X, observed, items), items, mean)
    return {
        "codes": weights @ mean,
        "codes_squared": (mean * weights[:, None]).T @ mean,
        "codes_variance": np.tensordot(weights, posterior.covariance, 1),
        "observed": weights @ mask,
        "squares": weights @ squares,
        "variances": weights @ (mask * variance),
        "squares_standardized": weights @ (squares / variance),
    }


def compute_level_person_fit(
    X: Answers, observed: Bits | None, items: LevelItems, codes: Floats
) -> PersonFit:
    """Compare the answers of each row with the probabilities at its code.

    l_z is that of F. Drasgow, M. V. Levine and E. A. Williams (1985). Rows without values fit.

    Parameters
    ----------
    X, observed
        As for `compute_level_posterior`.
    items
        The items.
    codes
        Codes of the rows, (n_samples, q).
    """
    answers = split_answers(X, observed, items)
    P, levels = compute_level_probabilities(items, codes), answers.levels
    log_p = np.log(np.maximum(P, _TINY))
    nats = (levels * log_p).sum(axis=1)
    expected, variance = np.zeros((2, len(X)))
    for alike in iter_alike(items.n_planes):
        own = P[:, alike.levels]
        present = levels[:, alike.levels].sum(axis=2)
        mean = xlogy(own, own).sum(axis=2)
        squares = (own * log_p[:, alike.levels] ** 2).sum(axis=2)
        expected += (present * mean).sum(axis=1)
        variance += (present * (squares - mean**2)).sum(axis=1)
    mask, squares, spread = _compute_residuals(answers, items, codes)
    if items.gaussians is not None:
        # log p is its mean + ½ − z² / 2 with a standard normal z, whose variance is ½.
        own = mask[:, items.n_planes == 0]
        z_squared = (squares / spread)[:, items.n_planes == 0]
        nats += (0.5 * (own - z_squared)).sum(axis=1)
        variance += 0.5 * own.sum(axis=1)
    total, n_values = (mask * spread).sum(axis=1), mask.sum(axis=1)
    l_z = (nats - expected) / np.sqrt(np.where(variance > 0, variance, np.inf))
    infit = np.where(total > 0, squares.sum(axis=1) / np.maximum(total, _TINY), 1.0)
    outfit = (squares / spread).sum(axis=1) / np.maximum(n_values, 1)
    of_scores, explained = _remove_scores(answers, items, codes)
    star = standardize(nats - expected - of_scores, variance - explained, variance)
    return PersonFit(l_z, infit, np.where(n_values > 0, outfit, 1.0), star)


def _remove_scores(answers: RowAnswers, items: LevelItems, codes: Floats) -> tuple[Floats, Floats]:
    """Return c·(score of a row), and what it takes from the variance of the log-likelihood.

    See `solve_for_shift`.
    """
    q = codes.shape[1]
    P, levels = compute_level_probabilities(items, codes), answers.levels
    log_p = np.log(np.maximum(P, _TINY))
    slopes = np.empty((*P.shape, q))
    for k, step in enumerate(_STEP * np.eye(q)):
        above, below = (compute_level_probabilities(items, codes + s) for s in (step, -step))
        slopes[:, :, k] = (np.log(np.maximum(above, _TINY)) - np.log(np.maximum(below, _TINY))) / (
            2 * _STEP
        )
    score = np.einsum("nl,nlk->nk", levels, slopes)
    information, moments = np.zeros((len(codes), q, q)), np.zeros((len(codes), q))
    for alike in iter_alike(items.n_planes):
        present = levels[:, alike.levels].sum(axis=2)
        own = P[:, alike.levels] * present[:, :, None]
        own_slopes = slopes[:, alike.levels]
        moments += np.einsum("nil,nil,nilk->nk", own, log_p[:, alike.levels], own_slopes)
        information += np.einsum("nil,nila,nilb->nab", own, own_slopes, own_slopes)
    if (gaussians := items.gaussians) is not None:  # z² and z are uncorrelated
        per_sd = gaussians.weights / gaussians.deviations[:, None]
        z = (answers.values - gaussians.compute_means(codes).T) / gaussians.deviations
        score += (answers.mask * z) @ per_sd
        information += np.einsum("ni,ia,ib->nab", 1.0 * answers.mask, per_sd, per_sd)
    shift = solve_for_shift(information, moments)
    return np.einsum("na,na->n", shift, score), np.einsum("na,na->n", shift, moments)
