"""Latent-trait fits of linked forms that end below the truth, or with signs that change.

python -m tests.benchmarks linked_forms [SEEDS]

Prints counts for 12 designs, one and two traits, binary items and three levels. The likelihood of
the fit and that of the parameters that generated the data are computed by Gauss-Hermite quadrature.
With one or three linking rows, the likelihood of the wrong signs can be higher than that of the
truth: such fits are counted apart. Default: 10 seeds, 480 fits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

import latentbits as lb
from tests.benchmarks._measure import Table
from tests.support.designs import (
    Mask,
    link_by_features,
    link_by_rows,
    link_in_chain,
    link_in_ring,
    rotate_members,
)
from tests.support.traits import count_sign_changes, draw_answers, sum_log_likelihood

N_ROWS, N_ITEMS = 1200, 17

LINKING_ROWS, COMMON_ITEMS = (1, 3, 10, 30, 100), (1, 2, 3)
DESIGNS: Mapping[str, Callable[[int, int, np.random.Generator], Mask]] = {
    **{f"{k} linking rows": partial(link_by_rows, share=k / N_ROWS) for k in LINKING_ROWS},
    **{f"{k} common items": partial(link_by_features, n_links=k) for k in COMMON_ITEMS},
    "chain of 3 forms": partial(link_in_chain, n_forms=3),
    "ring of 3 forms": partial(link_in_ring, n_forms=3),
    "ring of 4 forms": partial(link_in_ring, n_forms=4),
    "rotating members": partial(rotate_members, term=0.35),
}


class FitOutcome(NamedTuple):
    """Log-likelihood of a fit above that of the truth, nats, and signs that changed."""

    gain: float
    sign_changes: int


def try_fit(design: str, q: int, n_levels: int, seed: int) -> FitOutcome:
    """Draw a data set, fit it by default settings, and compare the fit with the truth."""
    rng = np.random.default_rng([seed, q, n_levels, list(DESIGNS).index(design)])
    n_items = N_ITEMS + (design == "2 common items")
    answers = draw_answers(DESIGNS[design](N_ROWS, n_items, rng), q, n_levels, rng)
    levels = None if n_levels == 2 else [str(level) for level in range(n_levels)]
    data = lb.from_numpy(answers.X, levels=levels)
    params = lb.fit(data, "latent-trait", components=q, errors="none", seed=seed).params
    offsets = params.offsets if n_levels == 2 else params.level_offsets
    fitted = sum_log_likelihood(answers.X, params.weights, offsets.reshape(n_items, -1))
    truth = sum_log_likelihood(answers.X, answers.slopes, answers.offsets)
    changes = count_sign_changes(params.weights, answers.slopes) if q == 1 else 0
    return FitOutcome(fitted - truth, changes)


def main(n_seeds: int = 10) -> None:
    """Print a row for each design."""
    table = Table(
        *("design:<20", "traits:d", "levels:d", "below the truth:d", "sign changes:d"),
        *("least gain:.1f", "seconds:.1f"),
    )
    for q in (1, 2):
        for n_levels in (2, 3):
            for design in DESIGNS:
                start = time.perf_counter()
                outcomes = [try_fit(design, q, n_levels, seed) for seed in range(n_seeds)]
                seconds = time.perf_counter() - start
                below = sum(outcome.gain < 0 for outcome in outcomes)
                changes = sum(outcome.sign_changes > 0 for outcome in outcomes)
                least = min(outcome.gain for outcome in outcomes)
                table.add(design, q, n_levels, below, changes, least, seconds)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
