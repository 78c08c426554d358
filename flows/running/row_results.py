"""Store results as long as the data: workers write ranges of rows, which are then recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import zip_longest
from typing import Any

from pipeline.executors.base import Executor
from pipeline.passes.row_ranges import (
    ArrayDescriptions,
    Arrays,
    RowRange,
    group_ranges,
    split_into_ranges,
    write_ranges,
)
from storage.codes.codes import CodeArraySpec, CodesWriter, ResumableResults, create_codes


def write_row_ranges(
    make_arrays: Callable[[RowRange], Arrays],
    arrays: ArrayDescriptions,
    n_rows: list[int],
    size: int,
    results: ResumableResults,
    executor: Executor,
    report: Callable[[int, int, int], Any],
) -> tuple[CodesWriter, list[list[int]]]:
    """Compute and store all ranges of rows, except those stored by an interrupted run.

    Parameters
    ----------
    make_arrays
        Computes the arrays of a range; runs on the workers.
    arrays
        Names, dimensions and types of the arrays.
    n_rows, size
        Number of rows of each chunk, and of a range.
    results
        Where the ranges are stored and recorded.
    report
        Called after every task with the tasks done, the tasks in total, and the rows done.

    Returns
    -------
    tuple
        The writer of the ranges, and the checksums of each range.
    """
    specs = {n: CodeArraySpec(*a) for n, a in arrays.items()}
    ranges = list(split_into_ranges(n_rows, size))
    finished = results.read_finished()[: len(ranges)]
    writer = create_codes(results.codes_folder, specs, sum(n_rows), size, keep=bool(finished))
    ranges = [
        row_range._replace(checksums=stored) for row_range, stored in zip_longest(ranges, finished)
    ]
    checksums: list[list[int]] = []
    report(0, len(ranges), 0)
    write = partial(write_ranges, make_arrays, writer)
    with closing(executor.map(write, group_ranges(ranges))) as written_groups:
        for group_checksums in written_groups:
            checksums += group_checksums
            if len(checksums) > len(finished):
                results.record_finished(checksums)
            report(len(checksums), len(ranges), ranges[len(checksums) - 1].stop)
    return writer, checksums
