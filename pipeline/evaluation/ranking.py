"""Ranks of rows by their scores on one trait, and differences between rows.

Given the fitted parameters, the traits of different rows are independent. A row has the score m_n
and the standard error s_n, so the difference of two rows is N(m_a − m_b, s_a² + s_b²), which gives
z, p, and the rows that cannot be told apart.

Ranks are drawn: each draw takes the trait of every row from N(m_n, s_n²) and ranks the rows, the
highest first. The mean of a row's ranks is its expected rank, and their quantiles are the interval
(N. M. Laird, T. A. Louis, Journal of Educational Statistics 14, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.errors import FitError
from pipeline.random import RowRandom

MAX_RANKED_ROWS = 100_000
"""Maximum number of rows of a ranking."""
_MAX_DRAWS = 4000
_MAX_CELLS = 100_000_000  # ranks in memory
_DRAWS_PER_BATCH = 50
_TAIL = 0.025  # of the intervals, on each side
_P = 0.05  # below it, two rows are told apart


class Contrast(NamedTuple):
    """The difference of the scores of two rows.

    Attributes
    ----------
    difference, error
        First score minus second, and its standard error.
    z
        Their ratio.
    p
        Two-sided p-value of no difference.
    """

    difference: float
    error: float
    z: float
    p: float


def select_scores(codes: Mapping[str, Any], component: int) -> tuple[Array, Array] | None:
    """Return scores and variances of a component, counted from 0, (n_rows,) each; None without.

    They are the codes `mean` and `variance`, or other scores with their standard errors.
    """
    names = ("score", "standard_error") if "score" in codes else ("mean", "variance")
    if not all(name in codes for name in names):
        return None
    scores, spreads = (np.asarray(codes[name], np.float64) for name in names)
    if scores.ndim == 1:  # sums
        scores, spreads = scores[:, None], spreads[:, None]
    if scores.shape != spreads.shape or not 0 <= component < scores.shape[1]:
        return None
    spread = spreads[:, component]
    return scores[:, component], spread if names[1] == "variance" else spread**2


def compare_scores(scores: tuple[float, float], variances: tuple[float, float]) -> Contrast:
    """Return the first score minus the second one, given their variances.

    Raises
    ------
    FitError
        If a number is not finite.
    """
    if not all(map(math.isfinite, (*scores, *variances))):
        raise FitError("A row has no finite score. Compare posterior means, or scores by `wle`.")
    difference = scores[0] - scores[1]
    error = math.sqrt(variances[0] + variances[1])
    z = difference / error if error else math.copysign(math.inf, difference) if difference else 0.0
    return Contrast(difference, error, z, float(2 * scipy.special.ndtr(-abs(z))))


class Ranking(NamedTuple):
    """Rows in the order of their scores, the highest first, (n_rows,) each.

    Attributes
    ----------
    order
        Indices of the rows.
    position
        1 for the highest score; equal scores have equal positions.
    rank, rank_low, rank_high
        Expected rank, and the ends of its 95 % interval.
    group
        Number of the group, from 1. No two rows of a group differ by a test at the 5 % level.
    """

    order: NDArray[np.intp]
    position: NDArray[np.int64]
    rank: Array
    rank_low: NDArray[np.int64]
    rank_high: NDArray[np.int64]
    group: NDArray[np.int64]


def check_can_be_ranked(n_rows: int) -> None:
    """Raise `FitError` if there are more than `MAX_RANKED_ROWS` rows."""
    if n_rows > MAX_RANKED_ROWS:
        raise FitError(
            f"There are {n_rows:,} rows, but a ranking has at most {MAX_RANKED_ROWS:,}. Transform "
            "fewer rows, such as one split."
        )


def rank_rows(scores: Array, variances: Array, seed: int = 0) -> Ranking:
    """Rank rows by their scores, (n_rows,), with intervals from their variances, (n_rows,).

    Raises
    ------
    FitError
        If there are more than `MAX_RANKED_ROWS` rows, or a score is not finite.
    """
    check_can_be_ranked(len(scores))
    if n_bad := int((~np.isfinite(scores + variances)).sum()):
        raise FitError(
            f"{n_bad:,} rows have no finite score, so they have no rank. Rank posterior means, or "
            "scores by {scores=wle}."
        )
    order = np.argsort(-scores, kind="stable")
    scores, errors = scores[order], np.sqrt(variances[order])
    ranks = _draw_ranks(order, scores, errors, RowRandom(seed).stream("ranks"))
    low, high = np.quantile(ranks, [_TAIL, 1 - _TAIL], axis=1, method="inverted_cdf")
    return Ranking(
        order,
        np.searchsorted(-scores, -scores) + 1,
        ranks.mean(axis=1),
        low.astype(np.int64),
        high.astype(np.int64),
        _number_groups(scores, errors),
    )


def _draw_ranks(
    rows: NDArray[np.intp], scores: Array, errors: Array, rng: RowRandom
) -> NDArray[np.int32]:
    """Draw ranks, (n_rows, n_draws)."""
    n = len(scores)
    n_draws = min(_MAX_DRAWS, _MAX_CELLS // n) // _DRAWS_PER_BATCH * _DRAWS_PER_BATCH
    ranks = np.empty((n, n_draws), np.int32)
    for first in range(0, n_draws, _DRAWS_PER_BATCH):
        own = rng.stream(str(first)).normal(rows.astype(np.int64), _DRAWS_PER_BATCH)
        drawn = np.argsort(-(scores[:, None] + errors[:, None] * own), axis=0, kind="stable")
        places = np.arange(1, n + 1, dtype=np.int32)[:, None]
        np.put_along_axis(ranks[:, first : first + _DRAWS_PER_BATCH], drawn, places, axis=0)
    return ranks


def _number_groups(scores: Array, errors: Array) -> NDArray[np.int64]:
    """Number the groups of rows in falling order; a group ends before a row that differs."""
    groups, start = np.ones(len(scores), np.int64), 0
    limit = scipy.special.ndtri(1 - _P / 2)
    for k in range(1, len(scores)):
        gaps = scores[start:k] - scores[k]
        differs = gaps > limit * np.hypot(errors[start:k], errors[k])
        start = k if differs.any() else start
        groups[k] = groups[k - 1] + (start == k)
    return groups
