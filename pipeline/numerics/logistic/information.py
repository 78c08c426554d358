"""Information that items give about a single trait, and what follows from it.

The information of an item with the curve P(θ) is I(θ) = P′(θ)² / (P(θ) (1 − P(θ))), which is
w² P(θ) (1 − P(θ)) if P(θ) = σ(w θ + b); `asymptotes` has other curves. The information of a test is
the sum over its items; 1 / √I is the standard error of the maximum likelihood estimate of θ (F. M.
Lord, "Applications of item response theory to practical testing problems", 1980). With a standard
normal trait, the marginal reliability is the mean of I / (I + 1) over θ (B. F. Green et al.,
Journal of Educational Measurement 21, 1984).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, xlogy

from pipeline.numerics.logistic.asymptotes import (
    Asymptotes,
    compute_log_probabilities,
    differentiate_curves,
)

Floats = NDArray[np.float64]

_MIN_SPREAD = 1e-9
_REACH, _N_POINTS = 8.0, 1601  # of the integrals over the trait


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


def compute_item_information(
    slopes: Floats, offsets: Floats, points: Floats, asymptotes: Asymptotes | None = None
) -> Floats:
    """Return the information of each item at points of the trait, (n_points, n_features)."""
    eta = np.outer(points, slopes) + offsets
    if asymptotes is not None:
        by_one, by_zero = differentiate_curves(eta, asymptotes)
        return np.asarray(-(slopes**2) * by_one[0] * by_zero[0])
    information: Floats = slopes**2 * expit(eta) * expit(-eta)
    return information


def compute_marginal_reliability(
    slopes: Floats, offsets: Floats, asymptotes: Asymptotes | None = None
) -> float:
    """Return the mean of I / (I + 1) over a standard normal trait."""
    return average_reliability(
        lambda points: compute_item_information(slopes, offsets, points, asymptotes).sum(axis=1)
    )


def average_reliability(compute_information: Callable[[Floats], Floats]) -> float:
    """Return the mean of I / (I + 1) over a standard normal trait, given I at points."""
    points, shares = _make_trait_grid()
    information = compute_information(points)
    return float(shares @ (information / (information + 1)))


def find_reversed_items(weights: Floats) -> NDArray[np.bool_]:
    """Return the items that sum scores count in reverse, (n_features,), given weights of items.

    These are the items of one trait whose slopes have the other sign than most. Of several traits,
    (n_features, q), there are none.
    """
    if weights.ndim == 2 and weights.shape[1] != 1:
        return np.zeros(len(weights), np.bool_)
    slopes = weights.ravel()
    return np.asarray(slopes * slopes.sum() < 0)


def choose_short_test(
    compute_information: Callable[[Floats], Floats], n_items: int
) -> tuple[NDArray[np.intp], Floats]:
    """Choose items for the most reliable test of `n_items`, one after the other.

    Every step adds the item that raises the marginal reliability most. `compute_information`
    returns the information of each item at points of the trait, (n_points, n_features).

    Returns
    -------
    tuple
        The items in the order in which they are added, and the reliability with each, (n_items,).
    """
    points, shares = _make_trait_grid()
    by_item = compute_information(points)
    total, chosen, reliabilities = np.zeros(len(points)), [], []
    is_left = np.ones(by_item.shape[1], np.bool_)
    for _ in range(n_items):
        with_item = by_item + total[:, None]
        reliability = np.where(is_left, shares @ (with_item / (with_item + 1)), -np.inf)
        best = int(np.argmax(reliability))
        is_left[best], total = False, with_item[:, best]
        chosen.append(best)
        reliabilities.append(float(reliability[best]))
    return np.array(chosen), np.array(reliabilities)


def compute_person_fit(
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    weights: Floats,
    offsets: Floats,
    codes: Floats,
    asymptotes: Asymptotes | None = None,
) -> PersonFit:
    """Compare the answers of each row with the probabilities at its code.

    Rows whose answers are all certain, or that have none, fit: both l_z are 0, the others 1.

    Parameters
    ----------
    X, observed
        Values and mask, (n_samples, n_features); the mask is None if all values are observed.
    weights, offsets
        w, (n_features, q), and b, (n_features,).
    codes
        Codes of the rows, (n_samples, q).
    asymptotes
        Guessing and slipping of the items; None if their curves range from 0 to 1.
    """
    mask = np.ones(X.shape) if observed is None else observed.astype(np.float64)
    eta = codes @ weights.T + offsets
    P, Q = expit(eta), expit(-eta)
    if asymptotes is not None:
        log_one, log_zero = compute_log_probabilities(eta, asymptotes)
        P, Q, eta = np.exp(log_one), np.exp(log_zero), log_one - log_zero
    tiny = np.finfo(float).tiny
    nats = mask * np.where(X == 1, np.log(np.maximum(P, tiny)), np.log(np.maximum(Q, tiny)))
    expected = mask * (xlogy(P, P) + xlogy(Q, Q))
    variance = (mask * P * Q * eta**2).sum(axis=1)
    squares, uncertain = mask * (X - P) ** 2, mask * P * Q
    total, n_values = uncertain.sum(axis=1), mask.sum(axis=1)
    standardized = squares / np.maximum(P * Q, tiny)
    l_z = (nats - expected).sum(axis=1) / np.sqrt(np.where(variance > 0, variance, np.inf))
    infit = np.where(total > 0, squares.sum(axis=1) / np.maximum(total, tiny), 1.0)
    outfit = np.where(n_values > 0, standardized.sum(axis=1) / np.maximum(n_values, 1), 1.0)
    steepness = np.ones_like(eta)
    if asymptotes is not None:
        by_one, by_zero = differentiate_curves(codes @ weights.T + offsets, asymptotes)
        steepness = by_one[0] - by_zero[0]  # P′ / (P (1 − P)) per unit of w·x
    score_moments = (uncertain * eta * steepness) @ weights
    information = np.einsum("ni,ia,ib->nab", uncertain * steepness**2, weights, weights)
    shift = solve_for_shift(information, score_moments)
    residuals = mask * (X - P) * (eta - steepness * (shift @ weights.T))
    spread = variance - np.einsum("na,na->n", score_moments, shift)
    return PersonFit(l_z, infit, outfit, standardize(residuals.sum(axis=1), spread, variance))


def solve_for_shift(information: Floats, score_moments: Floats) -> Floats:
    """Return c = I⁻¹ Cov(log-likelihood, score) of each row, (n_samples, q).

    The log-likelihood minus c times the score does not depend, to first order, on the estimate of
    the traits. The arguments are I, (n_samples, q, q), and the covariances, (n_samples, q).
    """
    inverse = np.linalg.pinv(information, hermitian=True)
    return np.asarray(np.einsum("nab,nb->na", inverse, score_moments))


def standardize(residuals: Floats, spread: Floats, variance: Floats) -> Floats:
    """Divide by the root of `spread`; 0 where it is nothing of `variance`, (n_samples,) each."""
    is_spread = spread > _MIN_SPREAD * variance
    return np.where(is_spread, residuals / np.sqrt(np.where(is_spread, spread, 1.0)), 0.0)


def _make_trait_grid() -> tuple[Floats, Floats]:
    """Return points of a standard normal trait, and their shares, (n_points,) each."""
    points = np.linspace(-_REACH, _REACH, _N_POINTS)
    density = np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)
    return points, density / density.sum()
