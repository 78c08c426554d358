"""Draws a synthetic dataset from a fitted model: `python -m flows.sample --artifact PATH ...`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np

from flows.cli.app import make_app, run_app
from flows.cli.options import (
    OUTPUT,
    ArtifactPath,
    ExecutorOptions,
    Json,
    Option,
    Overwrite,
    Seed,
    WholeNumber,
)
from flows.cli.progress import report_progress
from flows.cli.summary import print_ingest, print_json
from flows.data.fitted import LoadedModel, load_fitted_model
from flows.data.ingest import summarize_dataset
from flows.running.executors import prepare_executor
from flows.running.flow import StageRunner, make_flow, run_flow
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.inference.sample import (
    SamplingTask,
    divide_among_segments,
    draw_model_rows,
    iter_sampling_tasks,
)
from pipeline.models.capabilities import check_can_sample
from storage.artifacts.artifact_reader import ArtifactReader
from storage.dataset.bits import unpack_rows
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from storage.format.schema import DATASET_FORMAT
from storage.sources import SourceBatch
from storage.stores.locations import AnyPath, check_target_folder, parse_path

HELP = """Draw a synthetic dataset from a fitted model, of any size.

It has the features of the fit, and its segments where the model has some: as large as they were
among the rows fitted, at least two rows each, one segment after the other. The same artifact, rows
and seed give the same dataset, wherever the work ran.
"""
EXAMPLES = """Examples:

    python -m flows.sample --artifact runs/votes --rows 100000 --output synthetic.zarr
    python -m flows.fit --dataset synthetic.zarr

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
app = make_app("sample", HELP, EXAMPLES)


@Option(name="*")
@dataclass(frozen=True)
class SampleOptions:
    """The options of the command, and the parameters of the flow."""

    artifact: ArtifactPath
    rows: Annotated[WholeNumber, Option(group=OUTPUT, help="Number of rows to draw.")]
    output: Annotated[str, Option(group=OUTPUT, help="Folder of the dataset to write.")]
    seed: Seed = 0
    where: ExecutorOptions = field(default_factory=ExecutorOptions)
    overwrite: Overwrite = False


@dataclass(frozen=True)
class SampleJob:
    """A dataset that can be drawn: from which fit, and where it goes."""

    options: SampleOptions
    fitted: LoadedModel
    output: AnyPath
    open_executor: Callable[[], AbstractContextManager[Executor]]


def _write_dataset(job: SampleJob, executor: Executor, progress: Progress) -> BinaryDataset:
    """Draw runs of rows where the workers are, and write them in order."""
    fitted, rows, seed = job.fitted, job.options.rows, job.options.seed
    draws = list(
        iter_sampling_tasks(*divide_among_segments(fitted.params, rows), len(fitted.feature_names))
    )
    draw = partial(
        draw_model_rows, fitted.model, ArtifactReader.from_artifact(fitted.artifact), seed
    )
    with create_dataset(
        job.output,
        fitted.feature_names,
        expected_rows=rows,
        attributes=_make_attributes(fitted, seed),
        overwrite=job.options.overwrite,
    ) as writer:
        done = 0
        progress("sample", done, rows, done)
        for drawn, packed in zip(draws, executor.map(draw, draws), strict=True):
            X = unpack_rows(packed, len(fitted.feature_names))
            writer.add(SourceBatch(X, None, {}), _make_segment_labels(fitted, drawn))
            done += len(X)
            progress("sample", done, rows, done)
    return open_dataset(job.output)


def _make_segment_labels(fitted: LoadedModel, drawn: SamplingTask) -> np.ndarray | None:
    if not drawn.segments:
        return None
    names = [fitted.artifact.manifest["segment_names"][index] for index in drawn.segments]
    return np.repeat(names, drawn.n_rows)


def _make_attributes(fitted: LoadedModel, seed: int) -> dict[str, Any]:
    """Say what the rows are drawn from; `flows.fit --truth` compares with a mixing."""
    source = {
        "artifact": str(fitted.artifact.path.resolve()),
        "digest": fitted.digest,
        "model": fitted.model.name,
        "seed": seed,
    }
    found = fitted.artifact.get("mixing")
    truth = {} if found is None else {"truth": {"mixing": found.tolist()}}
    return {"sampled_from": source, **truth}


def prepare_sample(options: SampleOptions) -> SampleJob:
    """Refuse what can be refused at once."""
    open_executor = prepare_executor(**options.where)
    check_seed(options.seed)
    if options.rows < 2:
        raise FitError(f"--rows: Expected at least 2, got {options.rows}. Ask for more.")
    output = parse_path(options.output)
    check_target_folder(output, DATASET_FORMAT, options.overwrite)
    fitted = load_fitted_model(parse_path(options.artifact))
    check_can_sample(fitted.model)
    divide_among_segments(fitted.params, options.rows)
    return SampleJob(options, fitted, output, open_executor)


@make_flow("sample", SampleOptions)
def sample(options: SampleOptions) -> dict[str, Any]:
    """Draw a synthetic dataset from a fitted model."""
    return run_sample(prepare_sample(options))


def run_sample(job: SampleJob) -> dict[str, Any]:
    """Run the stages of a draw that was checked."""
    begun, artifact = time.perf_counter(), job.fitted.artifact
    with job.open_executor() as ready, report_progress() as progress:
        stages = StageRunner(ready, job.fitted.feature_names, artifact.manifest["segment_names"])
        written = stages.run("write dataset", lambda: _write_dataset(job, ready, progress))
    return {
        **summarize_dataset(written, time.perf_counter() - begun),
        "artifact": str(artifact.path.resolve()),
        "model": job.fitted.model.name,
        "stages": stages.seconds,
    }


@app.default
def main(*, options: SampleOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    summary = run_flow("sample", options, partial(run_sample, prepare_sample(options)))
    if json:
        print_json(summary)
    else:
        print_ingest(summary)


if __name__ == "__main__":
    run_app(app)
