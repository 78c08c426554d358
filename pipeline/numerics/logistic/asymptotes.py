"""Curves of items that are solved by guessing, or missed in spite of ability.

An item with three or four parameters has the curve

    P(x) = g + (1 − s − g) σ(η),   η = w·x + b,

with guessing g, the lower asymptote, and slipping s, 1 minus the upper one (A. Birnbaum, "Some
latent trait models and their use in inferring an examinee's ability", 1968; M. A. Barton, F. M.
Lord, "An upper asymptote for the three-parameter logistic item-response model", 1981).

Derivatives are by (η, logit g, logit s). With Q = 1 − P and subscripts for derivatives,

    ∂_a log P = P_a / P,   ∂_a ∂_b log P = P_ab / P − (P_a / P) (P_b / P),   P_ab = f_ab P_b,

and the same for log Q, with Q_a = −P_a. Ratios are computed from logarithms, so that they stay
exact where P or Q underflows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logit

Floats = NDArray[np.float64]

MAX_LOGIT = 15.0
"""Of a guessing or slipping probability: 3e-7 counts as 0."""


class Asymptotes(NamedTuple):
    """Guessing g and slipping s of each item, (n_features,), as probabilities."""

    guessing: Floats
    slipping: Floats

    @property
    def by_item(self) -> Asymptotes:
        """Columns, (n_features, 1), for η of shape (n_features, n_nodes)."""
        return Asymptotes(self.guessing[:, None], self.slipping[:, None])


def join_asymptotes(guessing: Floats | None, slipping: Floats | None) -> Asymptotes | None:
    """Return the asymptotes of items that may have only one, or None if they have neither."""
    known = guessing if guessing is not None else slipping
    if known is None:
        return None
    zero = np.zeros_like(known)
    return Asymptotes(
        zero if guessing is None else guessing, zero if slipping is None else slipping
    )


def to_logits(probabilities: Floats) -> Floats:
    """Return logits within ±`MAX_LOGIT`, which stands for 0 and 1."""
    return np.asarray(np.clip(logit(probabilities), -MAX_LOGIT, MAX_LOGIT))


def from_logits(logits: Floats) -> Floats:
    """Undo `to_logits`."""
    return np.where(logits <= -MAX_LOGIT, 0.0, expit(logits))


class CurveDerivatives(NamedTuple):
    """Derivatives of log P and of log Q by (η, logit g, logit s), (3, …) each."""

    log_one: Floats
    log_zero: Floats


def compute_probabilities(eta: Floats, asymptotes: Asymptotes | None) -> Floats:
    """Return P, given η; asymptotes are broadcast to the shape of η."""
    P: Floats = expit(eta)
    if asymptotes is None:
        return P
    g, s = asymptotes
    return g + (1 - s - g) * P


def compute_log_probabilities(eta: Floats, asymptotes: Asymptotes) -> tuple[Floats, Floats]:
    """Return log P and log Q, given η; asymptotes are broadcast to the shape of η."""
    with np.errstate(divide="ignore"):
        log_g, log_s = (np.log(value) for value in asymptotes)
    log_range = np.log1p(-(asymptotes.guessing + asymptotes.slipping))
    log_one = np.logaddexp(log_g, log_range + log_expit(eta))
    return log_one, np.logaddexp(log_s, log_range + log_expit(-eta))


def differentiate_curves(eta: Floats, asymptotes: Asymptotes) -> CurveDerivatives:
    """Return the first derivatives; asymptotes are broadcast to the shape of η."""
    g, s = asymptotes
    log_one, log_zero = compute_log_probabilities(eta, asymptotes)
    log_up, log_down = log_expit(eta), log_expit(-eta)
    with np.errstate(divide="ignore"):
        log_g, log_s = np.log(g * (1 - g)), np.log(s * (1 - s))
    # Of the absolute values of the derivatives of P.
    logarithms = (np.log1p(-(g + s)) + log_up + log_down, log_g + log_down, log_s + log_up)
    parts = tuple(zip((1, 1, -1), logarithms, strict=True))
    by_one = [sign * np.exp(logarithm - log_one) for sign, logarithm in parts]
    by_zero = [-sign * np.exp(logarithm - log_zero) for sign, logarithm in parts]
    return CurveDerivatives(np.stack(by_one), np.stack(by_zero))


def list_directions(points: Floats) -> Floats:
    """Return the derivatives of (η, logit g, logit s) by (w, b, logit g, logit s).

    `points` is (n_nodes, q), and the result (3, n_nodes, q + 3).
    """
    n_nodes, q = points.shape
    directions = np.zeros((3, n_nodes, q + 3))
    directions[0, :, :q], directions[0, :, q] = points, 1.0
    directions[1, :, q + 1] = directions[2, :, q + 2] = 1.0
    return directions


def sum_item_scores(
    points: Floats, ones: Floats, mass: Floats, derivatives: CurveDerivatives
) -> Floats:
    """Sum the derivatives of the log-likelihood by (w, b, logit g, logit s) over nodes.

    Parameters
    ----------
    points
        Nodes, (n_nodes, q).
    ones, mass
        Expected number of ones and of values at each node, (..., n_features, n_nodes).
    derivatives
        Of the curves at the nodes, (3, ..., n_features, n_nodes) each.

    Returns
    -------
    ndarray
        (..., n_features, q + 3).
    """
    scores = ones * derivatives.log_one + (mass - ones) * derivatives.log_zero
    return np.asarray(np.einsum("a...l,alc->...c", scores, list_directions(points)))


def sum_expected_curvature(points: Floats, mass: Floats, derivatives: CurveDerivatives) -> Floats:
    """Return the Fisher information of each item, Σ m P_a P_b / (P Q) over nodes.

    Parameters are as for `sum_item_scores`; the result is (..., n_features, q + 3, q + 3).
    """
    by_one, by_zero = derivatives
    return _sum_pairs(points, {(a, b): -mass * by_one[a] * by_zero[b] for a, b in _PAIRS})


def sum_observed_curvature(
    points: Floats,
    ones: Floats,
    mass: Floats,
    eta: Floats,
    asymptotes: Asymptotes,
    derivatives: CurveDerivatives,
) -> Floats:
    """Return minus the second derivatives of each item's log-likelihood, summed over nodes.

    `eta` has the shape of `ones`, and `asymptotes` are broadcast to it. Other parameters are as for
    `sum_item_scores`; the result is (..., n_features, q + 3, q + 3).
    """
    factors, zeros = _list_second_factors(eta, asymptotes), mass - ones
    by_one, by_zero = derivatives
    return _sum_pairs(
        points,
        {
            (a, b): ones * (by_one[a] * by_one[b] - factors.get((a, b), 0.0) * by_one[b])
            + zeros * (by_zero[a] * by_zero[b] - factors.get((a, b), 0.0) * by_zero[b])
            for a, b in _PAIRS
        },
    )


_PAIRS = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))


def _list_second_factors(eta: Floats, asymptotes: Asymptotes) -> dict[tuple[int, int], Floats]:
    """Return f_ab with P_ab = f_ab P_b, where it is not 0."""
    up, (g, s) = expit(eta), asymptotes
    return {
        (0, 0): 1 - 2 * up,
        (0, 1): -up,
        (0, 2): expit(-eta),
        (1, 1): 1 - 2 * g,
        (2, 2): 1 - 2 * s,
    }


def _sum_pairs(points: Floats, by_pair: dict[tuple[int, int], Floats]) -> Floats:
    """Sum symmetric matrices by (η, logit g, logit s) over nodes, in the item's parameters."""
    directions = list_directions(points)
    n_nodes, width = directions.shape[1:]
    total: Floats = np.zeros(())
    for (a, b), values in by_pair.items():
        products = directions[a, :, :, None] * directions[b, :, None]
        part = (values @ products.reshape(n_nodes, -1)).reshape(*values.shape[:-1], width, width)
        total = total + (part if a == b else part + np.swapaxes(part, -1, -2))
    return total
