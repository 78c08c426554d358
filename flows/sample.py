"""Draws a synthetic dataset from a fitted model: `python -m flows.sample --artifact PATH ...`."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from prefect import flow

from flows.cli.options import (
    HERE,
    FittedArtifact,
    Json,
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
from flows.ingest import ingest_summary
from flows.running.clusters import check_executor, opened_executor
from flows.running.server import with_server
from flows.running.stages import Stages
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.fit import check_seed
from pipeline.progress import Progress
from pipeline.using.simulate import Draw, draw_rows, draws_of, segments_to_draw
from storage.artifact_reader import ArtifactReader
from storage.bits import unpack_rows
from storage.dataset import BinaryDataset, open_dataset
from storage.locations import Place, check_free, place
from storage.schema import DATASET_FORMAT
from storage.sources import Batch
from storage.writer import create_dataset

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


def _write(
    fitted: Fitted,
    rows: int,
    output: Place,
    seed: int,
    overwrite: bool,
    executor: Executor,
    progress: Progress,
) -> BinaryDataset:
    """Draw runs of rows where the workers are, and write them in order."""
    draws = list(draws_of(*segments_to_draw(fitted.params, rows), len(fitted.feature_names)))
    draw = partial(draw_rows, fitted.model, ArtifactReader.of(fitted.artifact), seed)
    with create_dataset(
        output,
        fitted.feature_names,
        expected_rows=rows,
        attributes=_attributes(fitted, seed),
        overwrite=overwrite,
    ) as writer:
        done = 0
        progress("sample", done, rows, done)
        for drawn, packed in zip(draws, executor.map(draw, draws), strict=True):
            X = unpack_rows(packed, len(fitted.feature_names))
            writer.add(Batch(X, None, {}), _labels(fitted, drawn))
            done += len(X)
            progress("sample", done, rows, done)
    return open_dataset(output)


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


@flow(name="sample", validate_parameters=False)
def sample(
    artifact: str,
    rows: int,
    output: str,
    seed: int = 0,
    where: Where = HERE,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Run the stages; `python -m flows.sample --help` explains the parameters."""
    begun = time.perf_counter()
    fitted = checked(artifact, rows, output, seed, overwrite)
    target = place(output)
    with opened_executor(**where) as ready, reporting() as progress:
        segment_names = fitted.artifact.manifest["segment_names"]
        stages = Stages(ready, fitted.feature_names, segment_names)
        written = stages.run(
            "write dataset",
            lambda: _write(fitted, rows, target, seed, overwrite, ready, progress),
        )
    return {
        **ingest_summary(written, time.perf_counter() - begun),
        "artifact": str(fitted.artifact.path.resolve()),
        "model": fitted.model.name,
        "stages": stages.seconds,
    }


def checked(artifact: str, rows: int, output: str, seed: int, overwrite: bool) -> Fitted:
    """Refuse what can be refused at once."""
    check_seed(seed)
    if rows < 2:
        raise FitError(f"--rows: Expected at least 2, got {rows}. Ask for more.")
    check_free(place(output), DATASET_FORMAT, overwrite)
    fitted = load_fitted(place(artifact))
    segments_to_draw(fitted.params, rows)
    return fitted


@app.default
def main(
    *,
    artifact: FittedArtifact,
    rows: Annotated[Whole, Parameter(help="Number of rows to draw.")],
    output: Annotated[str, Parameter(help="Folder of the dataset to write.")],
    seed: Seed = 0,
    where: Where = HERE,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    check_executor(**where)
    checked(artifact, rows, output, seed, overwrite)
    summary = with_server(lambda: sample(artifact, rows, output, seed, where, overwrite))
    if json:
        print_json(summary)
    else:
        print_ingest(summary)


if __name__ == "__main__":
    run(app)
