"""Draws a synthetic dataset from a fitted model: `python -m flows.sample --artifact PATH ...`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np

from flows.cli.options import (
    OUTPUT,
    FittedArtifact,
    Json,
    Option,
    Overwrite,
    Seed,
    Where,
    Whole,
    command,
    run,
)
from flows.cli.progress import reporting
from flows.cli.summary import print_ingest, print_json
from flows.data.fitted import Fitted, load_fitted
from flows.data.ingested import ingest_summary
from flows.running.executors import executor_to_open
from flows.running.flow import flow_of, run_flow
from flows.running.stages import Stages
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.inference.sample import Draw, draw_rows, draws_of, segments_to_draw
from pipeline.models.capabilities import sampler
from storage.artifacts.artifact_reader import ArtifactReader
from storage.dataset.bits import unpack_rows
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from storage.format.schema import DATASET_FORMAT
from storage.sources import Batch
from storage.stores.locations import Place, check_free, place

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
app = command("sample", HELP, EXAMPLES)


@Option(name="*")
@dataclass(frozen=True)
class Options:
    """The options of the command, and the parameters of the flow."""

    artifact: FittedArtifact
    rows: Annotated[Whole, Option(group=OUTPUT, help="Number of rows to draw.")]
    output: Annotated[str, Option(group=OUTPUT, help="Folder of the dataset to write.")]
    seed: Seed = 0
    where: Where = field(default_factory=Where)
    overwrite: Overwrite = False


@dataclass(frozen=True)
class Job:
    """A dataset that can be drawn: from which fit, and where it goes."""

    options: Options
    fitted: Fitted
    output: Place
    open_executor: Callable[[], AbstractContextManager[Executor]]


def _write(job: Job, executor: Executor, progress: Progress) -> BinaryDataset:
    """Draw runs of rows where the workers are, and write them in order."""
    fitted, rows, seed = job.fitted, job.options.rows, job.options.seed
    draws = list(draws_of(*segments_to_draw(fitted.params, rows), len(fitted.feature_names)))
    draw = partial(draw_rows, fitted.model, ArtifactReader.of(fitted.artifact), seed)
    with create_dataset(
        job.output,
        fitted.feature_names,
        expected_rows=rows,
        attributes=_attributes(fitted, seed),
        overwrite=job.options.overwrite,
    ) as writer:
        done = 0
        progress("sample", done, rows, done)
        for drawn, packed in zip(draws, executor.map(draw, draws), strict=True):
            X = unpack_rows(packed, len(fitted.feature_names))
            writer.add(Batch(X, None, {}), _labels(fitted, drawn))
            done += len(X)
            progress("sample", done, rows, done)
    return open_dataset(job.output)


def _labels(fitted: Fitted, drawn: Draw) -> np.ndarray | None:
    if not drawn.segments:
        return None
    names = [fitted.artifact.manifest["segment_names"][index] for index in drawn.segments]
    return np.repeat(names, drawn.n_rows)


def _attributes(fitted: Fitted, seed: int) -> dict[str, Any]:
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


def check(options: Options) -> Job:
    """Refuse what can be refused at once."""
    open_executor = executor_to_open(**options.where)
    check_seed(options.seed)
    if options.rows < 2:
        raise FitError(f"--rows: Expected at least 2, got {options.rows}. Ask for more.")
    output = place(options.output)
    check_free(output, DATASET_FORMAT, options.overwrite)
    fitted = load_fitted(place(options.artifact))
    sampler(fitted.model)
    segments_to_draw(fitted.params, options.rows)
    return Job(options, fitted, output, open_executor)


@flow_of("sample", Options)
def sample(options: Options) -> dict[str, Any]:
    """Draw a synthetic dataset from a fitted model."""
    return run_sample(check(options))


def run_sample(job: Job) -> dict[str, Any]:
    """Run the stages of a draw that was checked."""
    begun, artifact = time.perf_counter(), job.fitted.artifact
    with job.open_executor() as ready, reporting() as progress:
        stages = Stages(ready, job.fitted.feature_names, artifact.manifest["segment_names"])
        written = stages.run("write dataset", lambda: _write(job, ready, progress))
    return {
        **ingest_summary(written, time.perf_counter() - begun),
        "artifact": str(artifact.path.resolve()),
        "model": job.fitted.model.name,
        "stages": stages.seconds,
    }


@app.default
def main(*, options: Options, json: Json = False) -> None:
    """Run the flow and print its summary."""
    summary = run_flow("sample", options, partial(run_sample, check(options)))
    if json:
        print_json(summary)
    else:
        print_ingest(summary)


if __name__ == "__main__":
    run(app)
