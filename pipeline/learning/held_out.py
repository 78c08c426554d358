"""Held-out rows that choose a number of components; the same rows in every pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.row_random import draw_first_uniforms
from pipeline.params import get_named_arrays, params_from_arrays
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums

HELD_OUT_SHARE = 0.1
"""Share of rows held out to choose the number of components."""
HELD_OUT_PASS = 1 << 32
"""Pass number for draws that are the same in every pass; no fit has as many passes."""


def is_held_out(rows: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Return whether each original row is held out, (n_rows,)."""
    held_out: NDArray[np.bool_] = draw_first_uniforms(_make_held_out_draws(seed).key, rows) < share
    return held_out


@lru_cache(maxsize=1)
def _make_held_out_draws(seed: int) -> RowRandom:
    """Return the draws, cached because making the key takes longer than drawing for a batch."""
    return RowRandom(seed, HELD_OUT_PASS)


def run_e_step_with_held_out(
    e_step: Callable[[BinaryBlock], Sums], share: float, block: BinaryBlock, rng: RowRandom
) -> Sums:
    """Run the E-step on the rows of a block, but only score the held-out rows.

    `e_step` returns the sums of a block; their objective is the score. The seed of `rng` selects
    the held-out `share` of the rows. Of a row with a frequency, a share of its repetitions is held
    out. Return the sums of the other rows, to which `held_out` and `held_out_weight`, the score and
    the weight of the held-out rows, are added.
    """
    if share == 0:
        return e_step(block)
    if block.weights is None or block.has_sampling_weights:
        is_out = is_held_out(block.rows, share, rng.seed)
        parts = [block.take_rows(np.flatnonzero(rows)) for rows in (is_out, ~is_out)]
    else:
        uniform = draw_first_uniforms(_make_held_out_draws(rng.seed).key, block.rows)
        n_out = compute_binomial_quantiles(uniform, block.weights, share)
        parts = [
            replace(block, weights=weights).take_rows(np.flatnonzero(weights))
            for weights in (n_out, block.weights - n_out)
        ]
    scored, fitted = map(e_step, parts)
    held_out = {"held_out": np.array(scored.objective), "held_out_weight": np.array(scored.weight)}
    return replace(fitted, values={**fitted.values, **held_out})


def compute_binomial_quantiles(
    levels: NDArray[np.float64], n_trials: NDArray[np.int64], share: float
) -> NDArray[np.int64]:
    """Return the least k with P(successes ≤ k) ≥ level of each number of trials, (n,)."""
    k = np.ceil(scipy.special.bdtrik(levels, n_trials, share))
    lower = np.maximum(k - 1, 0)
    is_enough = scipy.special.bdtr(lower, n_trials, share) >= levels
    quantiles: NDArray[np.int64] = np.where(is_enough, lower, k).astype(np.int64)
    return quantiles


def compute_held_out_score(statistics: Sums) -> float:
    """Return the mean score of the held-out rows, nats; 0 if there are none."""
    weight = float(statistics.values["held_out_weight"])
    return float(statistics.values["held_out"]) / weight if weight else 0.0


def record_held_out_score(
    params: Any,
    auxiliary: Mapping[str, NDArray[Any]],
    statistics: Sums,
    least_gain: float = 0.0,
) -> tuple[dict[str, NDArray[Any]], bool]:
    """Record the held-out score of a number of components at the end of its stage.

    Return `auxiliary` with the score added, and whether the score is the best so far. If it is,
    `auxiliary` also holds the parameters, and more components should be tried. `statistics` are
    from the last pass of the stage. The sum of the scores of all held-out rows must exceed that of
    fewer components by `least_gain` nats.
    """
    before, score = get_held_out_scores(auxiliary), compute_held_out_score(statistics)
    gain = (score - before.max(initial=-np.inf)) * float(statistics.values["held_out_weight"])
    is_best = not before.size or gain >= least_gain
    scores = np.append(before, score)
    named = get_named_arrays(params) if is_best else {}
    best = {f"best-{name}": array for name, (_, array) in named.items()}
    return {**auxiliary, "held_out_scores": scores, **best}, is_best


def get_held_out_scores(auxiliary: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return the scores of all numbers of components tried, in order."""
    return auxiliary.get("held_out_scores", np.zeros(0))


def get_best_params(kind: type[Any], auxiliary: Mapping[str, NDArray[Any]]) -> Any:
    """Return the best parameters that `record_held_out_score` recorded."""
    best = {n.removeprefix("best-"): a for n, a in auxiliary.items() if n.startswith("best-")}
    return params_from_arrays(kind, best)
