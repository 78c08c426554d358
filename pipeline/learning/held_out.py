"""Rows held out while a fit chooses its number of components: the same in every pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.numerics.row_random import draw_first_uniforms
from pipeline.params import get_named_arrays, params_from_arrays
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums

HELD_OUT_SHARE = 0.1
"""Share of the rows that the number of components is chosen on."""
HELD_OUT_PASS = 1 << 32
"""Number of a pass that never comes."""


def is_held_out(rows: NDArray[np.int64], share: float, seed: int) -> NDArray[np.bool_]:
    """Return which original rows are held out, (n_rows,): the same in every pass."""
    held_out: NDArray[np.bool_] = draw_first_uniforms(_make_held_out_draws(seed).key, rows) < share
    return held_out


@lru_cache(maxsize=1)
def _make_held_out_draws(seed: int) -> RowRandom:
    """Keep the draws from batch to batch: a key takes longer than those of a batch."""
    return RowRandom(seed, HELD_OUT_PASS)


def run_e_step_with_held_out(
    e_step: Callable[[BinaryBlock], Sums], share: float, block: BinaryBlock, rng: RowRandom
) -> Sums:
    """Do the E-step of a block's rows; score those held out instead.

    Parameters
    ----------
    e_step
        Sums of a block; its objective is the score.
    share
        Of rows to hold out, 0 for none.
    block
        The rows.
    rng
        Its seed decides which rows are held out.

    Returns
    -------
    Sums
        Of the rows to fit; `held_out` and `held_out_rows` are the score of the others, and their
        number.
    """
    if share == 0:
        return e_step(block)
    valid = is_held_out(block.rows, share, rng.seed)
    scored = e_step(block.take_rows(np.flatnonzero(valid)))
    fitted = e_step(block.take_rows(np.flatnonzero(~valid)))
    held_out = {
        "held_out": np.array(scored.objective),
        "held_out_rows": np.array(scored.n_samples),
    }
    return replace(fitted, values={**fitted.values, **held_out})


def compute_held_out_score(statistics: Sums) -> float:
    """Return the mean score of the rows held out, nats; 0 where there are none."""
    rows = int(statistics.values["held_out_rows"])
    return float(statistics.values["held_out"]) / max(rows, 1)


def record_held_out_score(
    params: Any, auxiliary: Mapping[str, NDArray[Any]], statistics: Sums
) -> tuple[dict[str, NDArray[Any]], bool]:
    """Judge a number of components by the rows held out, once its stage has ended.

    Parameters
    ----------
    params
        What the stage came to.
    auxiliary
        Of the fit's state.
    statistics
        Of the last pass of the stage.

    Returns
    -------
    tuple
        `auxiliary` with the score noted, and the parameters kept if they are the best so far; and
        whether they are, so that more components are worth a try.
    """
    scores = np.append(get_held_out_scores(auxiliary), compute_held_out_score(statistics))
    is_best = bool(scores[-1] >= scores.max())
    kept = (
        {f"best-{name}": a for name, (_, a) in get_named_arrays(params).items()} if is_best else {}
    )
    return {**auxiliary, "held_out_scores": scores, **kept}, is_best


def get_held_out_scores(auxiliary: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return the scores of all numbers of components that were judged, in their order."""
    return auxiliary.get("held_out_scores", np.zeros(0))


def get_best_params(kind: type[Any], auxiliary: Mapping[str, NDArray[Any]]) -> Any:
    """Return the parameters that `record_held_out_score` kept."""
    kept = {n.removeprefix("best-"): a for n, a in auxiliary.items() if n.startswith("best-")}
    return params_from_arrays(kind, kept)
