"""Write the nearest neighbours of rows: `python -m flows.neighbours --dataset PATH ...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import (
    DATA,
    OUTPUT,
    RUN,
    DatasetName,
    ExampleValue,
    ExecutorOptions,
    Json,
    Option,
    Overwrite,
    Resume,
    Where,
    WholeNumber,
)
from flows.cli.summary import join_names, print_summary
from flows.data.datasets import open_dataset_or_example
from flows.fitting.provenance import compute_fingerprint
from flows.running.executors import compute_row_memory, prepare_executor
from flows.running.flow import StageRunner, make_flow, run_command, run_stages
from flows.running.row_results import write_row_ranges
from pipeline.data.datasets import make_row_source
from pipeline.data.features import list_features
from pipeline.data.matching import check_same_features, check_same_levels
from pipeline.errors import FitError
from pipeline.evaluation.neighbourhoods import NearestRowSearch
from pipeline.executors.base import Executor
from pipeline.executors.code_digest import digest_modules, list_versions
from pipeline.executors.progress import Progress
from pipeline.fitting.pair_work import RowPairJob
from pipeline.numerics.graphs.neighbours import Metric
from pipeline.passes.row_ranges import choose_rows_per_range
from storage.codes.codes import CodesWriter, UnfinishedCodes, open_codes, seal_codes
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.format.schema import CODES_FORMAT
from storage.stores.locations import AnyPath, check_target_folder, parse_path

HELP = """Find the exact k nearest neighbours of every row of a dataset.

The output is a Zarr group with two arrays of shape (row, neighbour), nearest first: `indices`, the
rows of the dataset counted from 0, and `distances`. A row is not its own neighbour. Of equally
distant rows, the earlier one comes first.

Distances: `--metric hamming` is the number of differing features, which equals the squared
Euclidean distance. If values are missing, it is the share of differing features among those
observed in both rows, times the number of features. `--metric jaccard` is 1 - |both 1| / |any 1|
over the features observed in both rows, and 0 if neither row has a 1. Rows without common observed
features are infinitely far apart. An ordered feature counts as a binary one for each level but the
lowest: whether the value is at least this level. Continuous features are left out.

`--queries` finds neighbours for the rows of another dataset with the same features.
"""
EXAMPLES = f"""Examples:

    python -m flows.neighbours --dataset v.zarr --k 10 --output n.zarr
    python -m flows.neighbours --dataset v.zarr --queries w.zarr --output n.zarr

Read n.zarr with `storage.open_codes("n.zarr")["indices"]`, or with any Zarr client.

{EXIT_CODES}"""
app = make_app("neighbours", HELP, EXAMPLES)


@Option(name="*")
@dataclass(frozen=True)
class NeighboursOptions:
    """The options of the command, and the parameters of the flow."""

    dataset: DatasetName
    output: Annotated[
        str,
        Option(group=OUTPUT, help="Folder to write the neighbours to."),
        ExampleValue("neighbours.zarr"),
    ]
    k: Annotated[
        WholeNumber,
        Option(name="--k", group=RUN, help="Number of neighbours per row."),
        ExampleValue(10),
    ] = 10
    metric: Annotated[Metric, Option(group=RUN, help="Distance between rows.")] = "hamming"
    queries: Annotated[
        str | None,
        Option(
            group=DATA,
            help="Dataset whose rows to find neighbours for. [default: the dataset itself]",
        ),
        ExampleValue("data/new.zarr"),
    ] = None
    where: Where = field(default_factory=ExecutorOptions)
    resume: Resume = False
    overwrite: Overwrite = False


@dataclass(frozen=True)
class NeighboursJob:
    """A checked search: its datasets and its output folder."""

    options: NeighboursOptions
    dataset: BinaryDataset
    queries: BinaryDataset | None
    output: AnyPath
    open_executor: Callable[[], AbstractContextManager[Executor]]

    @property
    def query_dataset(self) -> BinaryDataset:
        """The dataset whose rows neighbours are found for."""
        return self.dataset if self.queries is None else self.queries

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """Everything that determines the neighbours."""
        return {
            "metric": self.options.metric,
            "k": self.options.k,
            "versions": list_versions(),
            "code": digest_modules(
                "pipeline.fitting.pair_work", "pipeline.evaluation.neighbourhoods"
            ),
            "dataset": self.dataset.describe(),
            "queries": None if self.queries is None else self.queries.describe(),
        }

    @cached_property
    def work_folder(self) -> UnfinishedCodes:
        """The folder of unfinished neighbours."""
        return UnfinishedCodes(self.output.resolve(), compute_fingerprint(self.provenance))


def prepare_neighbours(options: NeighboursOptions) -> NeighboursJob:
    """Check everything that can be checked before the work starts."""
    open_executor = prepare_executor(**options.where)
    output = parse_path(options.output)
    check_target_folder(output, CODES_FORMAT, options.overwrite)
    dataset = open_dataset_or_example(options.dataset)
    if not dataset.n_planes:
        raise DataError(
            f"{dataset.path}: all features are continuous, but distances are between binary or "
            "ordered features. Ingest the features with {threshold}, or compare codes of a fit."
        )
    if nominal := sorted(dataset.nominal_features):
        raise DataError(
            f"{dataset.path}: feature {nominal[0]!r} is nominal, but distances are between binary "
            "or ordered features. Ingest the others with {drop}, or compare codes of a fit."
        )
    queries = None if options.queries is None else open_dataset_or_example(options.queries)
    if queries is not None:
        _check_queries(dataset, queries)
    max_k = dataset.n_rows - (queries is None)
    if not 1 <= options.k <= max_k:
        raise FitError(
            f"--k is {options.k}, but a row can have at most {max_k} neighbours in "
            f"{dataset.path}. Choose 1 to {max_k}."
        )
    return NeighboursJob(options, dataset, queries, output, open_executor)


def _check_queries(dataset: BinaryDataset, queries: BinaryDataset) -> None:
    remedy = "Use queries with the features of the dataset, in its order."
    names = (dataset.feature_names, queries.feature_names)
    try:
        check_same_features(*names, str(dataset.path), remedy)
        check_same_levels(list_features(dataset), list_features(queries), str(dataset.path))
    except FitError as error:
        raise DataError(f"{queries.path}: {error}") from None


@make_flow("neighbours", NeighboursOptions)
def neighbours(options: NeighboursOptions) -> dict[str, Any]:
    """Write the nearest neighbours of rows."""
    return run_neighbours(prepare_neighbours(options))


def run_neighbours(job: NeighboursJob) -> dict[str, Any]:
    """Run the stages of a checked job."""
    names = (job.dataset.feature_names, job.dataset.segment_names)
    claim = job.work_folder.claim_work(job.options.resume)
    return run_stages(job.open_executor, names, partial(_run_stages, job), claim)


def _run_stages(job: NeighboursJob, stages: StageRunner, progress: Progress) -> dict[str, Any]:
    find = partial(_write_neighbours, job, stages.executor, progress)
    writer, checksums = stages.run("find neighbours", find)
    publish = partial(_publish_neighbours, job, writer, checksums)
    return stages.run("write neighbours", publish, ["find neighbours"])


def _write_neighbours(
    job: NeighboursJob, executor: Executor, progress: Progress
) -> tuple[CodesWriter, list[list[int]]]:
    """Find and store the neighbours; return the writer and the checksums of each range of rows."""
    search = NearestRowSearch(
        job.options.metric, job.options.k, include_self=job.queries is not None
    )
    memory = compute_row_memory(executor)
    pairs = RowPairJob(
        search, make_row_source(job.query_dataset), make_row_source(job.dataset, memory=memory)
    )
    specs = pairs.describe_arrays()
    arrays = {name: (("neighbour",), *specs[name][1:]) for name in ("indices", "distances")}
    n_rows = job.query_dataset.rows_per_chunk
    report = partial(progress, "neighbours")
    size = choose_rows_per_range(arrays, sum(n_rows))
    return write_row_ranges(pairs, arrays, n_rows, size, job.work_folder.results, executor, report)


def _publish_neighbours(
    job: NeighboursJob, writer: CodesWriter, checksums: list[list[int]]
) -> dict[str, Any]:
    """Move the finished arrays to the output folder, and summarize them."""
    seal_codes(writer, checksums, job.provenance)
    job.work_folder.publish(job.options.overwrite)
    codes, names = open_codes(job.output), job.dataset.continuous_features
    text = "distances leave out continuous features"
    return {
        "neighbours": str(job.output),
        "dataset": str(job.dataset.path),
        "queries": None if job.queries is None else str(job.queries.path),
        "metric": job.options.metric,
        "k": job.options.k,
        "n_rows": codes.n_rows,
        "n_chunks": codes.n_chunks,
        "warnings": [f"{text}: {join_names(names)}"] if names else [],
    }


@app.default
def main(*, options: NeighboursOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    work = partial(run_neighbours, prepare_neighbours(options))
    run_command("neighbours", options, work, json, _print_summary)


def _print_summary(summary: Mapping[str, Any]) -> None:
    rows = [
        ("metric", summary["metric"]),
        ("rows", f"{summary['n_rows']:,}"),
        ("neighbours per row", f"{summary['k']:,}"),
        ("seconds", f"{summary['seconds']:.2f}"),
    ]
    print_summary(rows, {"neighbours": summary["neighbours"]}, summary["warnings"])


if __name__ == "__main__":
    run_app(app)
