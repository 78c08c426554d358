"""Writes the latent codes of a dataset's rows: `python -m flows.transform --dataset PATH ...`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter
from prefect import flow
from rich.console import Console
from rich.table import Table

from flows.cli.options import (
    HERE,
    DatasetName,
    FittedArtifact,
    Json,
    Overwrite,
    Resume,
    Seed,
    Split,
    Where,
    command,
    run,
)
from flows.cli.progress import reporting
from flows.cli.splits import named_split
from flows.cli.summary import print_json
from flows.data.datasets import dataset_path, dataset_rows
from flows.data.fitted import Fitted, check_features, load_fitted
from flows.fitting.provenance import fingerprint, provenance
from flows.running.clusters import check_executor, opened_executor
from flows.running.server import check_schedule, with_server
from flows.running.stages import Stages
from pipeline.executors.base import Executor, one_blas_thread
from pipeline.fit import check_seed
from pipeline.known_segments import segment_indices, unknown_segments
from pipeline.params import named_arrays, params_from_arrays
from pipeline.progress import Progress
from pipeline.random import RowRandom
from pipeline.using.transform import ROW, Transform, count_kept, described_codes, runs_of, write_run
from storage.artifact_reader import ArtifactReader
from storage.artifacts import Artifact, NamedArray, load_artifact, write_artifact
from storage.codes import CodeArray, CodesWriter, create_codes, open_codes, seal_codes
from storage.dataset import BinaryDataset, open_dataset
from storage.errors import DataError
from storage.locations import Place, check_free, place
from storage.schema import CODES_FORMAT
from storage.unfinished_codes import UnfinishedCodes

HELP = """Write the latent codes of every row of a dataset, in the original row order.

The codes are Zarr arrays whose first axis is the row: `mean` (row, component) and whatever else the
model gives, such as `variance`, `covariance` or `converged`. With `--split` rows of other splits
are left out, and the array `row` says which row of the dataset each code is of, counted from 0.

Features must be those of the fit, in its order. Segments are found by name; those that were not
fitted are taken as the mean of those that were, with a warning.
"""
EXAMPLES = """Examples:

    python -m flows.transform --dataset votes.zarr --artifact runs/votes --output codes.zarr
    python -m flows.transform --dataset clicks.zarr --artifact runs/clicks --output z.zarr --resume

Read them with `storage.open_codes("codes.zarr")["mean"]`, or with any Zarr client.

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
app = command("transform", HELP, EXAMPLES)
Dtype = Literal["float32", "float64"]


@dataclass(frozen=True)
class Job:
    """One transform: what decides its codes, and where they go."""

    fitted: Fitted
    dataset: BinaryDataset
    split: str | None
    dtype: Dtype
    seed: int
    output: Place

    @cached_property
    def described(self) -> dict[str, Any]:
        """Everything that decides the codes."""
        return {
            **provenance(self.fitted.model, self.dataset, self.split, self.seed),
            "artifact": self.fitted.digest,
            "dtype": self.dtype,
        }

    @cached_property
    def work(self) -> UnfinishedCodes:
        """Where the codes are while they are unfinished."""
        return UnfinishedCodes(self.output.resolve(), fingerprint(self.described))


def _params(job: Job, executor: Executor) -> Artifact:
    """Complete the parameters, once, and put them where workers read them."""
    folder = job.work.params
    try:
        return load_artifact(folder)
    except DataError:
        rng = np.random.default_rng(job.seed)
        with one_blas_thread():
            params = job.fitted.model.prepare(job.fitted.params, rng, executor.map)
        arrays = {name: NamedArray(*a) for name, a in named_arrays(params).items()}
        write_artifact(folder, arrays, {})
        return load_artifact(folder)


def _rows_by_chunk(job: Job, executor: Executor) -> list[int]:
    """Count the rows to transform in each chunk."""
    if job.split is None:
        return [int(n_rows) for n_rows in job.dataset.chunks[:, 1]]
    count = partial(count_kept, dataset_rows(job.dataset, job.split).read)
    counts = list(executor.map(count, range(job.dataset.n_chunks)))
    if not any(counts):
        raise DataError(f"{job.dataset.path}: --split: Expected rows in {job.split!r}, got none.")
    return counts


def _arrays(job: Job, params: Artifact) -> dict[str, CodeArray]:
    """Describe the arrays to write."""
    model = job.fitted.model
    built = params_from_arrays(type(model), params)
    found = described_codes(model, built, job.dataset.n_features, job.dtype)
    rows = {} if job.split is None else {ROW: ((), (), "int64")}
    return {name: CodeArray(*array) for name, array in {**found, **rows}.items()}


def _write(
    job: Job,
    params: Artifact,
    rows_by_chunk: list[int],
    executor: Executor,
    progress: Progress,
) -> tuple[CodesWriter, list[list[int]]]:
    """Transform and store the rows, run by run; give the checksums of each run."""
    before = job.work.finished()
    writer = create_codes(
        job.work.codes, _arrays(job, params), sum(rows_by_chunk), keep=bool(before)
    )
    transforming = Transform(
        job.fitted.model,
        ArtifactReader.of(params),
        RowRandom(job.seed),
        dataset_rows(job.dataset, job.split).read,
        segment_indices(job.fitted.segments, job.dataset.segment_names),
        job.dtype,
    )
    runs = runs_of(rows_by_chunk, writer.rows_per_chunk)
    runs = [r._replace(done=done) for r, done in zip_longest(runs, before)]
    checksums: list[list[int]] = []
    progress("transform", 0, len(runs), 0)
    with closing(executor.map(partial(write_run, transforming, writer), runs)) as written:
        for done in written:
            checksums.append(done)
            if len(checksums) > len(before):
                job.work.note(checksums)
            progress("transform", len(checksums), len(runs), runs[len(checksums) - 1].stop)
    return writer, checksums


def _publish(
    job: Job, writer: CodesWriter, checksums: list[list[int]], overwrite: bool
) -> dict[str, Any]:
    """Seal the codes, put them in their place and describe them."""
    warnings = unknown_segments(job.fitted.segments, job.dataset.segment_names)
    seal_codes(
        writer,
        checksums,
        {**job.described, "artifact_path": _artifact_path(job), "warnings": warnings},
    )
    job.work.publish(overwrite)
    codes = open_codes(job.output)
    return {
        "codes": str(job.output),
        "dataset": str(job.dataset.path),
        "artifact": _artifact_path(job),
        "model": job.fitted.model.name,
        "n_rows": codes.n_rows,
        "n_chunks": codes.n_chunks,
        "arrays": {name: codes.manifest["arrays"][name]["shape"] for name in codes},
        "dtype": job.dtype,
        "warnings": warnings,
    }


def _artifact_path(job: Job) -> str:
    return str(job.fitted.artifact.path.resolve())


@flow(name="transform", validate_parameters=False)
def transform(
    dataset: str,
    artifact: str,
    output: str,
    split: str | None = None,
    dtype: Dtype = "float32",
    seed: int = 0,
    where: Where = HERE,
    resume: bool = False,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Run the stages; `python -m flows.transform --help` explains the parameters."""
    check_schedule()
    begun = time.perf_counter()
    job = checked(dataset, artifact, output, split, dtype, seed, overwrite)
    with (
        job.work.working(resume),
        opened_executor(**where) as ready,
        reporting() as progress,
    ):
        stages = Stages(ready, job.dataset.feature_names, job.dataset.segment_names)
        params = stages.run("prepare", lambda: _params(job, ready))
        rows = stages.run("count rows", lambda: _rows_by_chunk(job, ready))
        written = stages.run("transform", lambda: _write(job, params, rows, ready, progress))
        summary = stages.run("write codes", lambda: _publish(job, *written, overwrite))
    seconds = round(time.perf_counter() - begun, 3)
    return {**summary, "seconds": seconds, "stages": stages.seconds}


def checked(
    dataset: str,
    artifact: str,
    output: str,
    split: str | None,
    dtype: Dtype,
    seed: int,
    overwrite: bool,
) -> Job:
    """Refuse what can be refused at once: a place that is taken, other features, no such split."""
    check_seed(seed)
    target = place(output)
    check_free(target, CODES_FORMAT, overwrite)
    fitted = load_fitted(place(artifact))
    opened = open_dataset(dataset_path(dataset))
    check_features(fitted, opened)
    return Job(fitted, opened, named_split(opened, split), dtype, seed, target)


@app.default
def main(
    *,
    dataset: DatasetName,
    artifact: FittedArtifact,
    output: Annotated[str, Parameter(help="Folder of the codes to write.")],
    split: Split = None,
    dtype: Annotated[Dtype, Parameter(help="Type that the codes are stored in.")] = "float32",
    seed: Seed = 0,
    where: Where = HERE,
    resume: Resume = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    check_executor(**where)
    checked(dataset, artifact, output, split, dtype, seed, overwrite)
    summary = with_server(
        lambda: transform(dataset, artifact, output, split, dtype, seed, where, resume, overwrite)
    )
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
