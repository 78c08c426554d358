"""Bootstrap of a network: its regressions fitted again to rows drawn with replacement.

In each draw, every row counts a random number of times: Poisson with the mean of its weight, which
depends on the row alone and not on how rows are cut (N. Oza, S. Russell, AISTATS 2001). All draws
of all regressions share the passes. A draw keeps the penalties of the fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts, Words
from pipeline.numerics.logistic.node_regressions import (
    Regressions,
    RegressionSums,
    sum_regressions,
)
from pipeline.numerics.row_random import draw_first_uniforms
from pipeline.random import RowRandom

_DRAW_PASS = 1 << 33
"""Pass number for draws that are the same in every pass; no fit has as many passes."""


class DrawSums(NamedTuple):
    """Sums of the regressions of all draws, and the weight of the rows of each, (n_draws,)."""

    sums: RegressionSums
    weights: Array


def repeat_regressions(own: Regressions, n_draws: int) -> Regressions:
    """Return the regressions, one of each group, once for each draw; all of them run."""
    draws, n_groups, n_values = np.arange(n_draws)[:, None], len(own.targets), len(own.values)

    def shift(edges: Counts, total: int) -> Counts:
        return np.append((edges[:-1] + draws * total).ravel(), n_draws * total)

    return Regressions(
        np.tile(own.targets, n_draws),
        shift(own.starts, len(own.columns)),
        np.tile(own.columns, n_draws),
        (own.groups + draws * n_groups).ravel(),
        shift(own.places, n_values),
        np.tile(own.values, n_draws),
        np.tile(own.is_active, n_draws),
        np.ones(n_draws * n_groups, np.bool_),
    )


def take_draw(own: Regressions, draw: int, n_draws: int) -> Regressions:
    """Return the regressions of one draw."""
    n = len(own.targets) // n_draws
    groups = slice(draw * n, (draw + 1) * n)
    starts = own.starts[groups.start : groups.stop + 1]
    places = own.places[groups.start : groups.stop + 1]
    values = slice(places[0], places[-1])
    return Regressions(
        own.targets[groups],
        starts - starts[0],
        own.columns[starts[0] : starts[-1]],
        own.groups[groups] - groups.start,
        places - places[0],
        own.values[values],
        own.is_active[values],
        own.is_running[groups],
    )


def sum_draws(
    words: Words,
    weights: Array,
    rows: NDArray[np.int64],
    rng: RowRandom,
    own: Regressions,
    n_draws: int,
) -> DrawSums:
    """Sum the regressions of all draws; `rows` are the original rows, which key the draws."""
    found, totals = [], np.zeros(n_draws)
    cumulated = scipy.special.pdtr(np.arange(20), 1.0)
    for draw in range(n_draws):
        part = take_draw(own, draw, n_draws)
        key = RowRandom(rng.seed, _DRAW_PASS).stream(f"draw {draw}").key
        uniform = draw_first_uniforms(key, rows)
        if (weights == 1).all():
            counts = np.searchsorted(cumulated, uniform).astype(np.float64)
        else:
            counts = np.ceil(scipy.special.pdtrik(uniform, np.maximum(weights, 1e-9)))
        totals[draw] = counts.sum()
        found.append(sum_regressions(words, counts, part))
    sums = RegressionSums._make(map(np.concatenate, zip(*found, strict=True)))
    return DrawSums(sums, totals)
