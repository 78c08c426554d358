"""Writes the latent codes of a dataset's rows: `python -m flows.transform --dataset PATH ...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table

from flows.cli.imports import importing
from flows.cli.options import (
    OUTPUT,
    DatasetName,
    FittedArtifact,
    Json,
    Option,
    Overwrite,
    Resume,
    Seed,
    Split,
    Where,
    command,
    run,
)
from flows.cli.splits import named_split
from flows.cli.summary import print_json
from flows.data.datasets import dataset_rows, open_named
from flows.data.fitted import Fitted, check_features, load_fitted
from flows.exporting.formats import check_size, is_table, table_file
from flows.fitting.provenance import fingerprint, provenance
from flows.running.executors import executor_to_open
from flows.running.flow import flow_of, run_flow
from flows.running.row_results import run_writing, write_runs
from flows.running.stages import Stages
from pipeline.data.segments import segment_indices, unknown_segments
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.inference.transform import Reconstruction, Transform, described_codes
from pipeline.models.capabilities import reconstructor
from pipeline.passes.row_ranges import ROW, Described, rows_by_chunk, rows_per_run
from pipeline.random import RowRandom
from storage.artifacts.artifact_reader import ArtifactReader
from storage.codes.codes import Codes, CodesWriter, open_codes, seal_codes
from storage.codes.unfinished_codes import UnfinishedCodes
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.format.schema import CODES_FORMAT
from storage.stores.locations import Place, check_free, place

HELP = """Write the latent codes of every row of a dataset, in the original row order.

The codes are Zarr arrays whose first axis is the row: `mean` (row, component) and whatever else the
model gives, such as `variance`, `covariance` or `converged`. With `--split` rows of other splits
are left out, and the array `row` says which row of the dataset each code is of, counted from 0.

An output that ends in .csv, .parquet or .xlsx is a table instead, as `flows.export` writes it: row
numbers, segments and kept columns beside the codes, and `sd` in place of `variance`.

Features must be those of the fit, in its order. Segments are found by name; those that were not
fitted are taken as the mean of those that were, with a warning.

`--reconstruct probabilities` adds what the model makes of each row's codes, P(x = 1 | codes) of
every feature, missing values among them; `--reconstruct bits` adds bits, 1 where that is above
½. `flows.ingest` makes a dataset of bits, with the names of the features.
"""
EXAMPLES = """Examples:

    python -m flows.transform --dataset votes.zarr --artifact runs/votes --output codes.zarr
    python -m flows.transform --dataset votes.zarr --artifact runs/votes --output codes.csv
    python -m flows.transform --dataset clicks.zarr --artifact runs/clicks --output z.zarr --resume
    python -m flows.transform --dataset a.zarr --artifact runs/a --output z.zarr --reconstruct bits
    python -m flows.ingest z.zarr --dataset reconstructed.zarr

Read them with `storage.open_codes("codes.zarr")["mean"]`, or with any Zarr client.

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
app = command("transform", HELP, EXAMPLES)
Dtype = Literal["float32", "float64"]
DOING = "pipeline.inference.transform"


@Option(name="*")
@dataclass(frozen=True)
class Options:
    """The options of the command, and the parameters of the flow."""

    dataset: DatasetName
    artifact: FittedArtifact
    output: Annotated[str, Option(group=OUTPUT, help="Folder of the codes, or table, to write.")]
    split: Split = None
    dtype: Annotated[Dtype, Option(group=OUTPUT, help="Type that the codes are stored in.")] = (
        "float32"
    )
    reconstruct: Annotated[
        Reconstruction | None,
        Option(
            group=OUTPUT,
            help="Write also what the codes say of every feature, or the likelier bit.",
        ),
    ] = None
    seed: Seed = 0
    where: Where = field(default_factory=Where)
    resume: Resume = False
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Job:
    """One transform that can be done: what decides its codes, and where they go."""

    options: Options
    fitted: Fitted
    dataset: BinaryDataset
    split: str | None
    output: Place
    open_executor: Callable[[], AbstractContextManager[Executor]]

    @cached_property
    def described(self) -> dict[str, Any]:
        """Everything that decides the codes."""
        return {
            **provenance(self.fitted.model, self.dataset, self.split, self.options.seed, DOING),
            "artifact": self.fitted.digest,
            "dtype": self.options.dtype,
            "reconstruct": self.options.reconstruct,
        }

    @cached_property
    def work(self) -> UnfinishedCodes:
        """Where the codes are while they are unfinished."""
        return UnfinishedCodes(self.output.resolve(), fingerprint(self.described))


def _rows_by_chunk(job: Job, executor: Executor) -> list[int]:
    """Count the rows to transform in each chunk."""
    if job.split is None:
        return [int(n_rows) for n_rows in job.dataset.chunks[:, 1]]
    counts = rows_by_chunk(dataset_rows(job.dataset, job.split), executor)
    if not any(counts):
        raise DataError(f"{job.dataset.path}: --split: Expected rows in {job.split!r}, got none.")
    check_size(job.output, sum(counts))
    return counts


def _arrays(job: Job) -> Described:
    """Describe the arrays to write."""
    model, params, options = job.fitted.model, job.fitted.params, job.options
    n_features = job.dataset.n_features
    found = described_codes(model, params, n_features, options.dtype, options.reconstruct)
    return found if job.split is None else {**found, ROW: ((), (), "int64")}


def _write(
    job: Job, n_rows: list[int], executor: Executor, progress: Progress
) -> tuple[CodesWriter, list[list[int]]]:
    """Transform and store the rows, run by run; give the checksums of each run."""
    transforming = Transform(
        job.fitted.model,
        ArtifactReader.of(job.fitted.artifact),
        RowRandom(job.options.seed),
        dataset_rows(job.dataset, job.split).read,
        segment_indices(job.fitted.segments, job.dataset.segment_names),
        job.options.dtype,
        job.options.reconstruct,
    )
    told, arrays = partial(progress, "transform"), _arrays(job)
    size = rows_per_run(arrays, sum(n_rows))
    return write_runs(transforming, arrays, n_rows, size, job.work.runs, executor, told)


def _publish(
    job: Job, progress: Progress, writer: CodesWriter, checksums: list[list[int]]
) -> dict[str, Any]:
    """Seal the codes, put them in their place, as they are or as a table, and describe them."""
    warnings = unknown_segments(job.fitted.segments, job.dataset.segment_names)
    seal_codes(
        writer,
        checksums,
        {**job.described, "artifact_path": _artifact_path(job), "warnings": warnings},
    )
    codes = open_codes(job.work.runs.codes)
    if isinstance(job.output, Path) and is_table(job.output.name):
        _write_table(job, codes, job.output, progress)
    else:
        job.work.publish(job.options.overwrite)
    return {
        "codes": str(job.output),
        "dataset": str(job.dataset.path),
        "artifact": _artifact_path(job),
        "model": job.fitted.model.name,
        "n_rows": codes.n_rows,
        "n_chunks": codes.n_chunks,
        "arrays": {name: codes.manifest["arrays"][name]["shape"] for name in codes},
        "dtype": job.options.dtype,
        "warnings": warnings,
    }


def _write_table(job: Job, codes: Codes, output: Path, progress: Progress) -> None:
    with importing():
        from flows.exporting.codes import code_table
        from flows.exporting.files import write_table
    write_table(code_table(codes, job.dataset, progress), output, job.options.overwrite)
    job.work.discard()


def _artifact_path(job: Job) -> str:
    return str(job.fitted.artifact.path.resolve())


def check(options: Options) -> Job:
    """Refuse what can be refused at once, such as a place that is taken, or other features."""
    open_executor = executor_to_open(**options.where)
    check_seed(options.seed)
    output = _free_output(options)
    fitted = load_fitted(place(options.artifact))
    if options.reconstruct:
        reconstructor(fitted.model)
    dataset = open_named(options.dataset)
    check_features(fitted, dataset)
    split = named_split(dataset, options.split)
    if split is None:
        check_size(output, dataset.n_rows)
    return Job(options, fitted, dataset, split, output, open_executor)


def _free_output(options: Options) -> Place:
    if is_table(options.output):
        return table_file(options.output, options.overwrite)
    output = place(options.output)
    check_free(output, CODES_FORMAT, options.overwrite)
    return output


@flow_of("transform", Options)
def transform(options: Options) -> dict[str, Any]:
    """Write the latent codes of a dataset's rows."""
    return run_transform(check(options))


def run_transform(job: Job) -> dict[str, Any]:
    """Run the stages of a transform that was checked."""
    resume, steps = job.options.resume, partial(_steps, job)
    return run_writing(job.work, resume, job.open_executor, job.dataset, steps)


def _steps(job: Job, stages: Stages, progress: Progress) -> dict[str, Any]:
    executor = stages.executor
    rows = stages.run("count rows", lambda: _rows_by_chunk(job, executor))
    written = stages.run("transform", lambda: _write(job, rows, executor, progress))
    return stages.run("write codes", lambda: _publish(job, progress, *written))


@app.default
def main(*, options: Options, json: Json = False) -> None:
    """Run the flow and print its summary."""
    summary = run_flow("transform", options, partial(run_transform, check(options)))
    if json:
        print_json(summary)
    else:
        _print_table(summary)


def _print_table(summary: Mapping[str, Any]) -> None:
    """Print what was written, and the warnings."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("model", summary["model"])
    table.add_row("rows", f"{summary['n_rows']:,}")
    for name, shape in summary["arrays"].items():
        table.add_row(name, " x ".join(f"{length:,}" for length in shape))
    table.add_row("seconds", f"{summary['seconds']:.2f}")
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    for warning in summary["warnings"]:
        console.print(f"warning: {warning}", markup=False)
    console.print(f"codes: {summary['codes']}", markup=False)


if __name__ == "__main__":
    run(app)
