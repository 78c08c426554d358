"""Writes results as long as the data: tasks store their runs of rows, and each is noted."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from functools import partial
from itertools import zip_longest
from typing import Any

from flows.cli.progress import report_progress
from flows.running.flow import StageRunner
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.passes.row_ranges import (
    ArrayDescriptions,
    Arrays,
    RowRange,
    split_into_ranges,
    write_range,
)
from storage.codes.codes import CodeArraySpec, CodesWriter, create_codes
from storage.codes.results import ResumableResults
from storage.codes.unfinished_codes import UnfinishedCodes
from storage.dataset.dataset import BinaryDataset


def run_writing_stages(
    work: UnfinishedCodes,
    resume: bool,
    open_executor: Callable[[], AbstractContextManager[Executor]],
    dataset: BinaryDataset,
    steps: Callable[[StageRunner, Progress], dict[str, Any]],
) -> dict[str, Any]:
    """Run the stages that write results into a claimed folder; give their summary, timed.

    Parameters
    ----------
    work
        The folder.
    resume
        Keep what an interrupted run left there.
    open_executor
        Opens what the stages run on.
    dataset
        Whose features and segments errors name.
    steps
        Runs the stages and gives the summary.
    """
    begun = time.perf_counter()
    with work.claim_work(resume), open_executor() as ready, report_progress() as progress:
        stages = StageRunner(ready, dataset.feature_names, dataset.segment_names)
        summary = steps(stages, progress)
    seconds = round(time.perf_counter() - begun, 3)
    return {**summary, "seconds": seconds, "stages": stages.seconds}


def write_row_ranges(
    make: Callable[[RowRange], Arrays],
    arrays: ArrayDescriptions,
    n_rows: list[int],
    size: int,
    written: ResumableResults,
    executor: Executor,
    told: Callable[[int, int, int], Any],
) -> tuple[CodesWriter, list[list[int]]]:
    """Make and store all runs but those that lie there whole.

    Parameters
    ----------
    make
        Makes the arrays of a run; it is sent to the workers.
    arrays
        What it makes.
    n_rows
        Rows of each chunk.
    size
        Rows of a run.
    written
        Where runs go.
    executor
        Where tasks run.
    told
        Is told after every task: tasks done, of how many, and rows.

    Returns
    -------
    tuple
        What wrote the runs, and the checksums of each.
    """
    total = sum(n_rows)
    coded = {n: CodeArraySpec(*a) for n, a in arrays.items()}
    runs = list(split_into_ranges(n_rows, size))
    before = written.read_finished()[: len(runs)]
    writer = create_codes(written.codes_folder, coded, total, size, keep=bool(before))
    runs = [run._replace(checksums=done) for run, done in zip_longest(runs, before)]
    checksums: list[list[int]] = []
    told(0, len(runs), 0)
    with closing(executor.map(partial(write_range, make, writer), runs)) as found:
        for done in found:
            checksums.append(done)
            if len(checksums) > len(before):
                written.record_finished(checksums)
            told(len(checksums), len(runs), runs[len(checksums) - 1].stop)
    return writer, checksums
