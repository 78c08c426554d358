"""Pair work: every row is compared with all rows, a run of rows a task.

A task holds its run, reads all chunks beside it one by one, and gives what its rows end with: so
that results of the data's size are written once, whole, where they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, Rows, blocks_of, joined
from pipeline.executors.base import Executor, one_blas_thread
from pipeline.executors.cancellation import check_wanted
from pipeline.executors.progress import Progress, silent
from pipeline.executors.threads import n_cpus
from pipeline.models.base import Model
from pipeline.models.capabilities import FeaturePairWork, PairWork
from pipeline.models.state import FitState
from pipeline.params import in_c_order
from pipeline.passes.feature_strips import FeaturePairs, height_within
from pipeline.passes.row_ranges import (
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

    label: ClassVar[str] = "pairs"
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

    def lengths(self, executor: Executor) -> list[int]:
        """Count the rows of each chunk."""
        return rows_by_chunk(self.rows, executor)

    def run_length(self, total: int) -> int:
        """Count the rows of a run."""
        return rows_per_run(self.described(), total)

    def rows_done(self, stop: int) -> int:
        """Count the rows that are done with, by the end of the last run."""
        return stop

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


class Work(Protocol):
    """Work before all passes, a run a task: of rows (`Pairs`), or of features (`FeaturePairs`)."""

    label: ClassVar[str]
    """What it is called."""

    def __call__(self, run: Run) -> Arrays:
        """MAP: give the arrays of a run."""

    def described(self) -> Described:
        """Describe the arrays that tasks give."""

    def lengths(self, executor: Executor) -> list[int]:
        """Count what is cut into runs, by the places that it lies in."""

    def run_length(self, total: int) -> int:
        """Count what a run has of a total."""

    def rows_done(self, stop: int) -> int:
        """Count the rows that are done with, by the end of the last run."""


def work_label(model: Model, n_features: int) -> str | None:
    """Name the work that a model wants done before its passes; None where there is none."""
    if isinstance(model, FeaturePairWork) and model.tabulates(n_features):
        return FeaturePairs.label
    return Pairs.label if isinstance(model, PairWork) else None


def work_of(model: Any, state: FitState, rows: Rows, spare: int | None = None) -> Work:
    """Compare rows, or tabulate features, with each other, as a model wants.

    Tasks take so many bytes more than `model.memory` says, at the most.
    """
    given = (state.params, state.working)
    if isinstance(model, PairWork):
        return Pairs(partial(model.compare, *given), rows, rows)
    height = height_within(rows.n_features, n_cpus(), spare)
    return FeaturePairs(partial(model.tabulate, *given), rows, height)


def in_memory(work: Work, executor: Executor, progress: Progress = silent) -> Results:
    """Do work whose results stay in the memory of this process."""
    lengths = work.lengths(executor)
    runs = runs_of(lengths, work.run_length(sum(lengths)))
    parts: list[Arrays] = []
    progress(work.label, 0, len(runs), 0)
    for part in executor.map(work, runs):
        parts.append(part)
        stop = runs[len(parts) - 1].stop
        progress(work.label, len(parts), len(runs), work.rows_done(stop))
    return Results(len(runs), partial(_part, parts))


def _part(parts: Sequence[Arrays], key: int, names: Sequence[str] | None = None) -> Arrays:
    return {name: parts[key][name] for name in names or parts[key]}


def taken_up(
    model: Any, state: FitState, results: Results, executor: Executor, seed: int
) -> FitState:
    """Let the model take up what the tasks found."""
    rng = np.random.default_rng([seed, 0, 0, 1])
    with one_blas_thread():
        found: FitState = model.compared(state, results, executor.map, rng)
    return replace(found, params=in_c_order(found.params))
