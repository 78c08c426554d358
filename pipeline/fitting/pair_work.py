"""Pair work before the passes: comparisons of every row with all rows, or tables of feature pairs.

A task holds one range of rows, reads all chunks one by one, and returns the results of its rows.
Results as large as the data are thus written once, by the worker that computed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, RowSource, concatenate_blocks, iter_blocks
from pipeline.executors.base import Executor, count_cpus, limit_blas_threads
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.central_work import NO_KEPT_RESULTS, KeptResults, open_central_work
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.base import Model
from pipeline.models.capabilities import CanCompareRows, CanTabulatePairs
from pipeline.models.state import FitState
from pipeline.params import convert_to_c_order
from pipeline.passes.feature_strips import (
    FeaturePairJob,
    choose_strip_height,
    count_strip_features,
)
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
    """Comparison of rows with all others: a function of a row range, sent with every task.

    Attributes
    ----------
    compare
        See `CanCompareRows.compare`: updates the results of the first block's rows by comparing
        them with the second block's rows. The third argument holds the results so far, None at
        first.
    rows, others
        The rows that get results, and the rows that each of them is compared with.
    """

    label: ClassVar[str] = "pairs"
    compare: Callable[[BinaryBlock, BinaryBlock, Arrays | None], Arrays]
    rows: RowSource
    others: RowSource

    def __call__(self, row_range: RowRange) -> dict[str, NDArray[Any]]:
        """Compare the rows of a range with all others; return their results, and `row`."""
        own = iter_range_rows(self.rows.read, row_range)
        left = concatenate_blocks([block for block, _ in own])
        results: Arrays | None = None
        for key in range(self.others.n_chunks):
            check_cancelled()
            blocks = [block for block in iter_blocks(self.others.read(key)) if block.n_samples]
            if blocks:
                results = self.compare(left, concatenate_blocks(blocks), results)
        return {ROW: left.rows, **(results or {})}

    def count_per_chunk(self, executor: Executor) -> list[int]:
        """Count the rows of each chunk."""
        return count_rows_by_chunk(self.rows, executor)

    def choose_range_length(self, total: int) -> int:
        """Choose the number of rows per range."""
        return choose_rows_per_range(self.describe_arrays(), total)

    def count_rows_done(self, stop: int) -> int:
        """Return the number of rows that are done once all ranges up to `stop` are."""
        return stop

    def describe_arrays(self) -> ArrayDescriptions:
        """Describe the arrays that tasks return, found by comparing empty blocks."""
        blocks = (b for key in range(self.rows.n_chunks) for b in iter_blocks(self.rows.read(key)))
        empty = next(blocks).take_rows(np.empty(0, np.int64))
        arrays = {ROW: empty.rows, **self.compare(empty, empty, None)}
        return {
            name: (tuple(f"{name}_{k}" for k in range(1, a.ndim)), a.shape[1:], str(a.dtype))
            for name, a in arrays.items()
        }


class PairJob(Protocol):
    """Pair work of rows (`RowPairJob`) or of features (`FeaturePairJob`); a task does one range."""

    label: ClassVar[str]
    """Name of the work, shown as progress."""

    def __call__(self, row_range: RowRange, /) -> Arrays:
        """Compute the arrays of a range, on a worker."""

    def describe_arrays(self) -> ArrayDescriptions:
        """Describe the arrays that tasks return."""

    def count_per_chunk(self, executor: Executor) -> list[int]:
        """Count the rows or features of each chunk that are split into ranges."""

    def choose_range_length(self, total: int) -> int:
        """Choose the number of rows or features per range."""

    def count_rows_done(self, stop: int) -> int:
        """Return the number of rows that are done once all ranges up to `stop` are."""


def get_pair_job_label(model: Model, n_features: int) -> str | None:
    """Return the label of the model's pair work; None if it has none."""
    if isinstance(model, CanTabulatePairs) and model.has_pair_tables(n_features):
        return FeaturePairJob.label
    return RowPairJob.label if isinstance(model, CanCompareRows) else None


def make_pair_job(
    model: Any, state: FitState, rows: RowSource, spare: int | None = None
) -> PairJob:
    """Create the pair work of a model, which compares rows or tabulates pairs of features.

    Tasks may use `spare` bytes beyond `model.estimate_memory`; None for no limit.
    """
    if isinstance(model, CanCompareRows):
        return RowPairJob(partial(model.compare, state.params, state.working), rows, rows)
    columns = model.count_columns(rows.n_features)
    height = choose_strip_height(int(columns.sum()), count_cpus(), spare, model.cell_bytes)
    tabulate = partial(model.tabulate, state.params, state.working)
    return FeaturePairJob(tabulate, rows, len(columns), count_strip_features(columns, height))


def run_in_memory(
    job: PairJob, executor: Executor, progress: Progress = ignore_progress
) -> RangeResults:
    """Run pair work and keep its results in the memory of this process."""
    lengths = job.count_per_chunk(executor)
    ranges = split_into_ranges(lengths, job.choose_range_length(sum(lengths)))
    parts: list[Arrays] = []
    progress(job.label, 0, len(ranges), 0)
    for part in executor.map(job, ranges):
        parts.append(part)
        stop = ranges[len(parts) - 1].stop
        progress(job.label, len(parts), len(ranges), job.count_rows_done(stop))
    return RangeResults(len(ranges), partial(_read_part, parts))


def _read_part(parts: Sequence[Arrays], key: int, names: Sequence[str] | None = None) -> Arrays:
    return {name: parts[key][name] for name in names or parts[key]}


def state_from_results(
    model: Any,
    state: FitState,
    results: RangeResults,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
    kept_results: KeptResults = NO_KEPT_RESULTS,
) -> FitState:
    """Return the state after the model has used the results of its pair work."""
    rng = np.random.default_rng([seed, 0, 0, 1])
    work = open_central_work(executor.map, progress, kept_results, "pairs")
    with limit_blas_threads(), work as map_items:
        updated: FitState = model.update_from_pairs(state, results, map_items, rng)
    return replace(updated, params=convert_to_c_order(updated.params))
