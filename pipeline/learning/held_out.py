"""Rows held out while a fit chooses its number of components: the same in every pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipeline.blocks import BinaryBlock
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums

HELD_OUT = 0.1
"""Share of the rows that the number of components is chosen on."""
HELD_OUT_PASS = 1 << 32
"""Number of a pass that never comes."""


def e_step_apart(
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
    valid = RowRandom(rng.seed, HELD_OUT_PASS).uniform(block.rows, 1)[:, 0] < share
    scored = e_step(block.taken(np.flatnonzero(valid)))
    fitted = e_step(block.taken(np.flatnonzero(~valid)))
    held_out = {
        "held_out": np.array(scored.objective),
        "held_out_rows": np.array(scored.n_samples),
    }
    return replace(fitted, values={**fitted.values, **held_out})


def held_out_score(statistics: Sums) -> float:
    """Give the mean score of the rows held out, nats; 0 where there are none."""
    rows = int(statistics.values["held_out_rows"])
    return float(statistics.values["held_out"]) / max(rows, 1)
