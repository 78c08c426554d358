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

from pipeline.data.blocks import BinaryBlock, RowSource, concatenate_blocks, iter_blocks
from pipeline.executors.base import Executor, limit_blas_threads
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.executors.threads import count_cpus
from pipeline.models.base import Model
from pipeline.models.capabilities import CanCompareRows, CanTabulatePairs
from pipeline.models.state import FitState
from pipeline.params import convert_to_c_order
from pipeline.passes.feature_strips import FeaturePairJob, choose_strip_height
from pipeline.passes.row_ranges import (
    ROW,
    ArrayDescriptions,
    Arrays,
    RangeResults,
    RowRange,
    choose_rows_per_range,
    count_rows_by_chunk,
    iter_range_rows,
    split_into_ranges,
)


@dataclass(frozen=True)
class RowPairJob:
    """What all tasks share; small enough to send with every one.

    Attributes
    ----------
    compare
        Folds what the rows of one more chunk, the second, say of each row of the first, given what
        it gave for the chunk before, None at first. See `CanCompareRows.compare`.
    rows
        The rows to find something of.
    others
        The rows that each of them is compared with.
    """

    label: ClassVar[str] = "pairs"
    compare: Callable[[BinaryBlock, BinaryBlock, Arrays | None], Arrays]
    rows: RowSource
    others: RowSource

    def __call__(self, run: RowRange) -> dict[str, NDArray[Any]]:
        """Compare the rows of a run with all others; give what they end with, and `row`.

        Raises
        ------
        Unwanted
            If the run was interrupted.
        """
        left = concatenate_blocks(
            [block.take_rows(at) for block, at, _ in iter_range_rows(self.rows.read, run)]
        )
        found: Arrays | None = None
        for key in range(self.others.n_chunks):
            check_cancelled()
            blocks = [block for block in iter_blocks(self.others.read(key)) if block.n_samples]
            if blocks:
                found = self.compare(left, concatenate_blocks(blocks), found)
        return {ROW: left.rows, **(found or {})}

    def count_per_chunk(self, executor: Executor) -> list[int]:
        """Count the rows of each chunk."""
        return count_rows_by_chunk(self.rows, executor)

    def choose_range_length(self, total: int) -> int:
        """Count the rows of a run."""
        return choose_rows_per_range(self.describe_arrays(), total)

    def count_rows_done(self, stop: int) -> int:
        """Count the rows that are done with, by the end of the last run."""
        return stop

    def describe_arrays(self) -> ArrayDescriptions:
        """Describe the arrays that tasks give, by a block whose rows are taken away."""
        blocks = (b for key in range(self.rows.n_chunks) for b in iter_blocks(self.rows.read(key)))
        nothing = next(blocks).take_rows(np.empty(0, np.int64))
        found = self.compare(nothing, nothing, None)
        arrays = {ROW: nothing.rows, **found}
        return {
            name: (tuple(f"{name}_{k}" for k in range(1, a.ndim)), a.shape[1:], str(a.dtype))
            for name, a in arrays.items()
        }


class PairJob(Protocol):
    """Work before all passes, a run a task: of rows (`RowPairJob`), or of features (`FeaturePairJob`)."""

    label: ClassVar[str]
    """What it is called."""

    def __call__(self, run: RowRange) -> Arrays:
        """MAP: give the arrays of a run."""

    def describe_arrays(self) -> ArrayDescriptions:
        """Describe the arrays that tasks give."""

    def count_per_chunk(self, executor: Executor) -> list[int]:
        """Count what is cut into runs, by the places that it lies in."""

    def choose_range_length(self, total: int) -> int:
        """Count what a run has of a total."""

    def count_rows_done(self, stop: int) -> int:
        """Count the rows that are done with, by the end of the last run."""


def get_pair_job_label(model: Model, n_features: int) -> str | None:
    """Name the work that a model wants done before its passes; None where there is none."""
    if isinstance(model, CanTabulatePairs) and model.has_pair_tables(n_features):
        return FeaturePairJob.label
    return RowPairJob.label if isinstance(model, CanCompareRows) else None


def make_pair_job(
    model: Any, state: FitState, rows: RowSource, spare: int | None = None
) -> PairJob:
    """Compare rows, or tabulate features, with each other, as a model wants.

    Tasks take so many bytes more than `model.memory` says, at the most.
    """
    given = (state.params, state.working)
    if isinstance(model, CanCompareRows):
        return RowPairJob(partial(model.compare, *given), rows, rows)
    height = choose_strip_height(rows.n_features, count_cpus(), spare)
    return FeaturePairJob(partial(model.tabulate, *given), rows, height)


def run_in_memory(
    work: PairJob, executor: Executor, progress: Progress = ignore_progress
) -> RangeResults:
    """Do work whose results stay in the memory of this process."""
    lengths = work.count_per_chunk(executor)
    runs = split_into_ranges(lengths, work.choose_range_length(sum(lengths)))
    parts: list[Arrays] = []
    progress(work.label, 0, len(runs), 0)
    for part in executor.map(work, runs):
        parts.append(part)
        stop = runs[len(parts) - 1].stop
        progress(work.label, len(parts), len(runs), work.count_rows_done(stop))
    return RangeResults(len(runs), partial(_read_part, parts))


def _read_part(parts: Sequence[Arrays], key: int, names: Sequence[str] | None = None) -> Arrays:
    return {name: parts[key][name] for name in names or parts[key]}


def state_from_results(
    model: Any, state: FitState, results: RangeResults, executor: Executor, seed: int
) -> FitState:
    """Let the model take up what the tasks found."""
    rng = np.random.default_rng([seed, 0, 0, 1])
    with limit_blas_threads():
        found: FitState = model.update_from_pairs(state, results, executor.map, rng)
    return replace(found, params=convert_to_c_order(found.params))
