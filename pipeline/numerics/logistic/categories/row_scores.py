"""Traits of rows that maximize a likelihood: with the prior (MAP), without (ML), and Warm's.

Weighted likelihood estimates of one trait solve

    s(x) + J(x) / (2 I(x)) = 0,   J = Σ_i Σ_c P′_ic P″_ic / P_ic,

with the score s and the information I, which removes the first-order bias of maximum likelihood (T.
A. Warm, Psychometrika 54, 1989; for levels: R. D. Penfield, J. M. Bergeron, Applied Psychological
Measurement 29, 2005). Standard errors are 1 / √I, with the prior's precision added to I for MAP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.categories.curves import (
    Answers,
    ItemsAlike,
    LevelItems,
    sum_observed_curvature,
)
from pipeline.numerics.logistic.categories.fit import NumberAnswers, iter_answers

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]

_REACH = 20.0
"""Largest distance of a score from the mean of the traits, in standard deviations."""
_MAX_STEPS = 200
_TOLERANCE = 1e-10
_N_STARTS = 81
_MIN_INFORMATION = 1e-9


class RowScores(NamedTuple):
    """Scores and their covariances, (n_samples, q) and (n_samples, q, q); NaN if not finite.

    `is_finite`, (n_samples,), tells the rows that have a score within 20 standard deviations.
    """

    scores: Floats
    covariance: Floats
    is_finite: NDArray[np.bool_]


class _Slopes(NamedTuple):
    """Log-likelihood of rows at their codes, score (n_samples, q), information, and Warm's J."""

    log_likelihood: Floats
    score: Floats
    information: Floats
    bend: Floats


def compute_row_scores(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    kind: str,
    row_means: Floats | None = None,
) -> RowScores:
    """Find the likeliest traits of each row.

    Parameters
    ----------
    X, observed
        As for `compute_row_posterior`.
    items
        The items as functions of traits whose prior is N(m, I).
    kind
        `map`, `ml`, or of one trait `wle`: what to maximize.
    row_means
        Means m of the rows, (n_samples, q), which only MAP uses; None if all are 0.
    """
    n, q = len(X), items.weights.shape[1]
    means = np.zeros((n, q)) if row_means is None else row_means
    precision = 1.0 if kind == "map" else 0.0

    def evaluate(rows: NDArray[np.intp], codes: Floats) -> _Slopes:
        mask = None if observed is None else observed[rows]
        found = _sum_slopes(X[rows], mask, items, codes, has_bend=kind == "wle")
        away = codes - means[rows]
        score = found.score - precision * away
        if kind == "wle":
            total = found.information[:, 0, 0]
            score[:, 0] += np.divide(
                found.bend, 2 * total, out=np.zeros(len(rows)), where=total > 0
            )
        log_likelihood = found.log_likelihood - 0.5 * precision * (away**2).sum(axis=1)
        information = found.information + precision * np.eye(q)
        return _Slopes(log_likelihood, score, information, found.bend)

    start = _find_starts(X, observed, items) if items.asymptotes is not None and q == 1 else means
    solve = _solve_one_trait if q == 1 else _climb
    codes, is_finite = solve(evaluate, start.copy())
    end = evaluate(np.arange(n), codes)
    smallest = np.linalg.eigvalsh(end.information)[:, 0]
    is_finite &= smallest > _MIN_INFORMATION
    covariance = np.full((n, q, q), np.nan)
    covariance[is_finite] = np.linalg.inv(end.information[is_finite])
    return RowScores(np.where(is_finite[:, None], codes, np.nan), covariance, is_finite)


def sum_answers(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    codes: Floats,
    is_reversed: NDArray[np.bool_],
) -> tuple[Floats, Floats]:
    """Sum the answers 0, …, m of each row; return the sums and their variances given the traits.

    Missing answers count as expected at the code of their row, (n_samples, q). `is_reversed` are
    the items, (n_features,), whose answers count as m, …, 0.
    """
    score, variance = np.zeros((2, len(X)))
    for answers in iter_answers(X, observed, items, codes):
        P, alike = answers.P, answers.alike
        levels = np.arange(P.shape[1], dtype=np.float64)[:, None]
        expected = (levels * P).sum(axis=1)
        mask = answers.levels.sum(axis=1)
        given = (levels * answers.levels).sum(axis=1) + (1 - mask) * expected
        turned = is_reversed[alike.features, None]
        score[answers.rows] += np.where(turned, levels[-1] - given, given).sum(axis=0)
        variance[answers.rows] += (P * (levels - expected[:, None]) ** 2).sum(axis=(0, 1))
    return score, variance


Evaluate = Callable[[NDArray[np.intp], Floats], _Slopes]


def _solve_one_trait(evaluate: Evaluate, codes: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Find the root of the score of each row by Newton's method within a bracket."""
    n, everyone = len(codes), np.arange(len(codes))
    low, high = np.full(n, -_REACH), np.full(n, _REACH)
    rises = evaluate(everyone, low[:, None]).score[:, 0] > 0
    is_finite = rises & (evaluate(everyone, high[:, None]).score[:, 0] < 0)
    codes = np.clip(codes, -_REACH, _REACH)
    active = np.flatnonzero(is_finite)
    for _ in range(_MAX_STEPS):
        if not len(active):
            break
        check_cancelled()
        found, x = evaluate(active, codes[active]), codes[active, 0]
        score, information = found.score[:, 0], found.information[:, 0, 0]
        low[active] = np.where(score > 0, x, low[active])
        high[active] = np.where(score > 0, high[active], x)
        step = np.divide(score, information, out=np.full(len(x), np.inf), where=information > 0)
        new, middle = x + step, (low[active] + high[active]) / 2
        new = np.where((new > low[active]) & (new < high[active]), new, middle)
        codes[active, 0] = np.where(score == 0, x, new)
        active = active[(np.abs(new - x) > _TOLERANCE) & (score != 0)]
    return codes, is_finite


def _climb(evaluate: Evaluate, codes: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Maximize the likelihood of each row by scoring steps, halved until it rises."""
    n, q = codes.shape
    active, has_converged = np.arange(n), np.zeros(n, np.bool_)
    now = evaluate(active, codes)
    for _ in range(_MAX_STEPS):
        check_cancelled()
        ridge = _MIN_INFORMATION * np.eye(q)
        step = np.linalg.solve(now.information + ridge, now.score[:, :, None])[:, :, 0]
        is_done = (np.abs(step) < _TOLERANCE).all(axis=1)
        has_converged[active[is_done]] = True
        is_lost = np.abs(codes[active]).max(axis=1) > _REACH
        stays = ~(is_done | is_lost)
        active, step = active[stays], np.clip(step[stays], -2.0, 2.0)
        if not len(active):
            break
        now = _Slopes(*(part[stays] for part in now))
        factor, left = np.ones(len(active)), np.ones(len(active), np.bool_)
        target = now
        for _ in range(30):
            target = evaluate(active, codes[active] + factor[:, None] * step)
            slack = 1e-12 * (1 + np.abs(now.log_likelihood))
            left = target.log_likelihood < now.log_likelihood - slack
            if not left.any():
                break
            factor[left] /= 2
        codes[active] += factor[:, None] * step
        now = target
    return codes, has_converged & (np.abs(codes).max(axis=1) <= _REACH)


def _find_starts(X: Answers, observed: Bits | None, items: LevelItems) -> Floats:
    """Return the likeliest of some points: with guessing, several may be local maxima."""
    points = np.linspace(-6, 6, _N_STARTS)[:, None]
    curves = items.tabulate(points)
    mask = np.ones(X.shape) if observed is None else observed.astype(np.float64)
    likelihood: Floats = (X * mask) @ curves.slopes + mask @ curves.constants
    return np.asarray(points[likelihood.argmax(axis=1)])


def _sum_slopes(
    X: Answers, observed: Bits | None, items: LevelItems, codes: Floats, has_bend: bool
) -> _Slopes:
    """Sum over the items of each row."""
    n, q = codes.shape
    log_likelihood, bend = np.zeros((2, n))
    score, information = np.zeros((n, q)), np.zeros((n, q * q))
    for answers in iter_answers(X, observed, items, codes):
        rows, alike, P = answers.rows, answers.alike, answers.P
        mask = answers.levels.sum(axis=1, keepdims=True)
        log_p = items.compute_log_probabilities(answers.eta, alike)
        log_likelihood[rows] += np.where(answers.levels > 0, log_p, 0.0).sum(axis=(0, 1))
        first = items.differentiate(answers.eta, alike)  # ∂ log P_c / ∂ η_j
        weights = items.weights[alike.planes]
        by_trait = np.einsum("icjn,ija->icna", first, weights, optimize=True)
        score[rows] += np.einsum("icn,icna->na", answers.levels, by_trait, optimize=True)
        weighted = (P * mask)[..., None] * by_trait
        products = np.einsum("icna,icnb->nab", weighted, by_trait, optimize=True)
        information[rows] += products.reshape(-1, q * q)
        if has_bend:
            bend[rows] += _sum_bend(items, answers.eta, alike, P * mask, by_trait[..., 0])
    if (gaussians := items.gaussians) is not None:  # they are symmetric, so nothing is added to J
        numbers = NumberAnswers.from_rows(X, observed, items, codes)
        per_sd = gaussians.weights / gaussians.deviations[:, None]
        score += numbers.z @ per_sd
        products = (per_sd[:, :, None] * per_sd[:, None]).reshape(-1, q * q)
        information += numbers.mask @ products
        log_likelihood -= 0.5 * (numbers.z**2).sum(axis=1)
    return _Slopes(log_likelihood, score, information.reshape(n, q, q), bend)


def _sum_bend(
    items: LevelItems, eta: Floats, alike: ItemsAlike, P: Floats, by_trait: Floats
) -> Floats:
    """Return Σ P′ P″ / P over the levels of some items, (n_rows,), of one trait.

    `P` is 0 where a value is missing, and `by_trait` has the first derivatives of log P, (n, m + 1,
    n_rows). With l = log P, P′ P″ / P = P l′ (l′² + l″).
    """
    weights, planes = items.weights[alike.planes][..., 0], eta[alike.planes]
    if items.asymptotes is not None:
        # P′ = (1 − g − s) σ (1 − σ) a, so P″ = P′ (1 − 2 σ) a
        straight = (1 - 2 * expit(planes)) * weights[:, :, None]
        return np.asarray((P * by_trait**2 * straight).sum(axis=(0, 1)))
    counts = P * by_trait
    curvature = sum_observed_curvature(counts, planes, items.is_cumulative)
    bend = -np.einsum("ij,ijkn,ik->n", weights, curvature, weights, optimize=True)
    return np.asarray(bend + (counts * by_trait**2).sum(axis=(0, 1)))
