"""Pair work: every row is compared with all rows, a run of rows a task.

A task holds its run, reads all chunks beside it one by one, and gives what its rows end with: so
that results of the data's size are written once, whole, where they were made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.blocks import BinaryBlock, Rows, blocks_of, joined
from pipeline.executors.base import Executor, one_blas_thread
from pipeline.models.capabilities import PairWork
from pipeline.models.state import FitState
from pipeline.params import in_c_order
from pipeline.progress import Progress, silent
from pipeline.runs import (
    ROW,
    Arrays,
    Described,
    Results,
    Run,
    rows_by_chunk,
    rows_of_run,
    rows_per_run,
    runs_of,
)
from pipeline.wanted import check_wanted

LABEL = "pairs"
"""What the work is called."""


@dataclass(frozen=True)
class Pairs:
    """What all tasks share; small enough to send with every one.

    Attributes
    ----------
    compare
        Folds what the rows of one more chunk, the second, say of each row of the first, given what
        it gave for the chunk before, None at first. See `PairWork.compare`.
    rows
        The rows to find something of.
    others
        The rows that each of them is compared with.
    """

    compare: Callable[[BinaryBlock, BinaryBlock, Arrays | None], Arrays]
    rows: Rows
    others: Rows

    def __call__(self, run: Run) -> dict[str, NDArray[Any]]:
        """Compare the rows of a run with all others; give what they end with, and `row`.

        Raises
        ------
        Unwanted
            If the run was interrupted.
        """
        left = joined([block.taken(at) for block, at, _ in rows_of_run(self.rows.read, run)])
        found: Arrays | None = None
        for key in range(self.others.n_chunks):
            check_wanted()
            blocks = [block for block in blocks_of(self.others.read(key)) if block.n_samples]
            if blocks:
                found = self.compare(left, joined(blocks), found)
        return {ROW: left.rows, **(found or {})}

    def described(self) -> Described:
        """Describe the arrays that tasks give, by a block whose rows are taken away."""
        blocks = (b for key in range(self.rows.n_chunks) for b in blocks_of(self.rows.read(key)))
        nothing = next(blocks).taken(np.empty(0, np.int64))
        found = self.compare(nothing, nothing, None)
        arrays = {ROW: nothing.rows, **found}
        return {
            name: (tuple(f"{name}_{k}" for k in range(1, a.ndim)), a.shape[1:], str(a.dtype))
            for name, a in arrays.items()
        }


def pairs_of(model: PairWork, state: FitState, rows: Rows) -> Pairs:
    """Compare rows with each other, as a model wants."""
    return Pairs(partial(model.compare, state.params, state.working), rows, rows)


def in_memory(pairs: Pairs, executor: Executor, progress: Progress = silent) -> Results:
    """Do pair work whose results stay in the memory of this process."""
    n_rows = rows_by_chunk(pairs.rows, executor)
    runs = runs_of(n_rows, rows_per_run(pairs.described(), sum(n_rows)))
    parts: list[Arrays] = []
    progress(LABEL, 0, len(runs), 0)
    for part in executor.map(pairs, runs):
        parts.append(part)
        progress(LABEL, len(parts), len(runs), runs[len(parts) - 1].stop)
    return Results(len(runs), parts.__getitem__)


def taken_up(
    model: PairWork, state: FitState, results: Results, executor: Executor, seed: int
) -> FitState:
    """Let the model take up what the tasks found."""
    rng = np.random.default_rng([seed, 0, 0, 1])
    with one_blas_thread():
        found = model.compared(state, results, executor.map, rng)
    return replace(found, params=in_c_order(found.params))
