"""Writes the nearest neighbours of rows: `python -m flows.neighbours --dataset PATH ...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table

from flows.cli.options import (
    DATA,
    OUTPUT,
    RUN,
    DatasetName,
    ExecutorOptions,
    Json,
    Option,
    Overwrite,
    Resume,
    WholeNumber,
    make_app,
    run_app,
)
from flows.cli.summary import print_json
from flows.data.datasets import make_row_source, open_dataset_or_example
from flows.fitting.provenance import compute_fingerprint, describe_dataset, list_versions
from flows.running.executors import compute_row_memory, prepare_executor
from flows.running.flow import make_flow, run_flow
from flows.running.row_results import run_writing_stages, write_row_ranges
from flows.running.stages import StageRunner
from pipeline.data.features import check_same_features
from pipeline.errors import FitError
from pipeline.evaluation.neighbourhoods import NearestRowSearch
from pipeline.executors.base import Executor
from pipeline.executors.code_digest import digest_modules
from pipeline.executors.progress import Progress
from pipeline.fitting.pair_work import RowPairJob
from pipeline.numerics.graphs.nearest_rows import Metric
from pipeline.passes.row_ranges import choose_rows_per_range
from storage.codes.codes import CodesWriter, open_codes, seal_codes
from storage.codes.unfinished_codes import UnfinishedCodes
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.format.schema import CODES_FORMAT
from storage.stores.locations import AnyPath, check_target_folder, parse_path

HELP = """Write the exact k nearest neighbours of every row of a dataset.

Two Zarr arrays, whose first axis is the row in original order and whose second the neighbour, the
nearest first: `indices`, which row of the dataset it is, counted from 0, and `distances`. A row is
no neighbour of its own, and ties go to the earlier row.

`--metric hamming` counts the features that differ, which is the squared Euclidean distance; with
missing values it is their share among the features observed in both rows, times the number of
features. `--metric jaccard` is 1 - both ones / any one over the features observed in both rows, 0
where neither has a one. Rows without an observed feature in common are infinitely far apart.

With `--queries` the neighbours are those of another dataset's rows, which has the same features in
the same order.
"""
EXAMPLES = """Examples:

    python -m flows.neighbours --dataset votes.zarr --k 10 --output nearest.zarr
    python -m flows.neighbours --dataset a.zarr --queries new.zarr --metric jaccard --output n.zarr
    python -m flows.neighbours --dataset clicks.zarr --output n.zarr --workers 8 --resume

Read them with `storage.open_codes("nearest.zarr")["indices"]`, or with any Zarr client.

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
app = make_app("neighbours", HELP, EXAMPLES)


@Option(name="*")
@dataclass(frozen=True)
class NeighboursOptions:
    """The options of the command, and the parameters of the flow."""

    dataset: DatasetName
    output: Annotated[str, Option(group=OUTPUT, help="Folder of the neighbours to write.")]
    k: Annotated[WholeNumber, Option(name="--k", group=RUN, help="Neighbours of each row.")] = 10
    metric: Annotated[Metric, Option(group=RUN, help="How far apart two rows are.")] = "hamming"
    queries: Annotated[
        str | None,
        Option(group=DATA, help="Dataset of the rows to find neighbours of. [default: the same]"),
    ] = None
    where: ExecutorOptions = field(default_factory=ExecutorOptions)
    resume: Resume = False
    overwrite: Overwrite = False


@dataclass(frozen=True)
class NeighboursJob:
    """One search that can be done: what decides its neighbours, and where they go."""

    options: NeighboursOptions
    dataset: BinaryDataset
    queries: BinaryDataset | None
    output: AnyPath
    open_executor: Callable[[], AbstractContextManager[Executor]]

    @property
    def query_dataset(self) -> BinaryDataset:
        """Whose rows neighbours are found of."""
        return self.dataset if self.queries is None else self.queries

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Everything that decides the neighbours."""
        return {
            "metric": self.options.metric,
            "k": self.options.k,
            "versions": list_versions(),
            "code": digest_modules(
                "pipeline.fitting.pair_work", "pipeline.evaluation.neighbourhoods"
            ),
            "dataset": describe_dataset(self.dataset),
            "queries": None if self.queries is None else describe_dataset(self.queries),
        }

    @cached_property
    def work_folder(self) -> UnfinishedCodes:
        """Where the neighbours are while they are unfinished."""
        return UnfinishedCodes(self.output.resolve(), compute_fingerprint(self.provenance))


def _write_neighbours(
    job: NeighboursJob, executor: Executor, progress: Progress
) -> tuple[CodesWriter, list[list[int]]]:
    """Find and store the neighbours, run by run; give the checksums of each run."""
    find = NearestRowSearch(job.options.metric, job.options.k, include_self=job.queries is not None)
    memory = compute_row_memory(executor)
    pairs = RowPairJob(
        find, make_row_source(job.query_dataset), make_row_source(job.dataset, memory=memory)
    )
    kinds = pairs.describe_arrays()
    arrays = {name: (("neighbour",), *kinds[name][1:]) for name in ("indices", "distances")}
    n_rows = [int(n) for n in job.query_dataset.chunks[:, 1]]
    told = partial(progress, "neighbours")
    size = choose_rows_per_range(arrays, sum(n_rows))
    return write_row_ranges(pairs, arrays, n_rows, size, job.work_folder.results, executor, told)


def _publish_neighbours(
    job: NeighboursJob, writer: CodesWriter, checksums: list[list[int]]
) -> dict[str, Any]:
    """Seal the arrays, put them in their place and describe them."""
    seal_codes(writer, checksums, job.provenance)
    job.work_folder.publish(job.options.overwrite)
    found = open_codes(job.output)
    return {
        "neighbours": str(job.output),
        "dataset": str(job.dataset.path),
        "queries": None if job.queries is None else str(job.queries.path),
        "metric": job.options.metric,
        "k": job.options.k,
        "n_rows": found.n_rows,
        "n_chunks": found.n_chunks,
    }


def prepare_neighbours(options: NeighboursOptions) -> NeighboursJob:
    """Refuse what can be refused at once, such as a place that is taken, or other features."""
    open_executor = prepare_executor(**options.where)
    output = parse_path(options.output)
    check_target_folder(output, CODES_FORMAT, options.overwrite)
    dataset = open_dataset_or_example(options.dataset)
    queries = None if options.queries is None else open_dataset_or_example(options.queries)
    if queries is not None:
        _check_queries(dataset, queries)
    most = dataset.n_rows - (queries is None)
    if not 1 <= options.k <= most:
        raise FitError(
            f"--k: Expected 1 to {most}, as many as rows of {dataset.path} can be neighbours, "
            f"got {options.k}. Ask for fewer."
        )
    return NeighboursJob(options, dataset, queries, output, open_executor)


def _check_queries(dataset: BinaryDataset, queries: BinaryDataset) -> None:
    """Refuse queries of other features."""
    remedy = "Give queries with the features of the dataset in its order."
    names = (dataset.feature_names, queries.feature_names)
    try:
        check_same_features(*names, str(dataset.path), remedy)
    except FitError as error:
        raise DataError(f"{queries.path}: {error}") from None


@make_flow("neighbours", NeighboursOptions)
def neighbours(options: NeighboursOptions) -> dict[str, Any]:
    """Write the nearest neighbours of rows."""
    return run_neighbours(prepare_neighbours(options))


def run_neighbours(job: NeighboursJob) -> dict[str, Any]:
    """Run the stages of a search that was checked."""
    resume, steps = job.options.resume, partial(_run_stages, job)
    return run_writing_stages(job.work_folder, resume, job.open_executor, job.dataset, steps)


def _run_stages(job: NeighboursJob, stages: StageRunner, progress: Progress) -> dict[str, Any]:
    written = stages.run(
        "find neighbours", lambda: _write_neighbours(job, stages.executor, progress)
    )
    return stages.run("write neighbours", lambda: _publish_neighbours(job, *written))


@app.default
def main(*, options: NeighboursOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    summary = run_flow("neighbours", options, partial(run_neighbours, prepare_neighbours(options)))
    if json:
        print_json(summary)
    else:
        _print_summary(summary)


def _print_summary(summary: Mapping[str, Any]) -> None:
    """Print what was written."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("metric", summary["metric"])
    table.add_row("rows", f"{summary['n_rows']:,}")
    table.add_row("neighbours of each", f"{summary['k']:,}")
    table.add_row("seconds", f"{summary['seconds']:.2f}")
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    console.print(f"neighbours: {summary['neighbours']}", markup=False)


if __name__ == "__main__":
    run_app(app)
