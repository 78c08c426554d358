"""Draw a synthetic dataset from a fitted model: `python -m flows.sample --artifact PATH ...`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import numpy as np

from flows.cli.app import EXIT_CODES, make_app, run_app
from flows.cli.options import (
    OUTPUT,
    ArtifactPath,
    ExampleValue,
    ExecutorOptions,
    Json,
    Option,
    Overwrite,
    Seed,
    Where,
    WholeNumber,
)
from flows.cli.summary import print_ingest
from flows.data.datasets import LoadedModel, load_fitted_model
from flows.data.ingest import summarize_dataset
from flows.running.executors import prepare_executor
from flows.running.flow import StageRunner, make_flow, run_command, run_stages
from pipeline.data.features import find_continuous, sum_planes
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.fitting.loop import check_seed
from pipeline.inference.sample import (
    SamplingTask,
    divide_among_segments,
    draw_model_rows,
    draw_model_rows_with_numbers,
    iter_sampling_tasks,
)
from pipeline.models.capabilities import check_can_sample, check_has_continuous_features
from storage.artifacts.artifacts import ArtifactReader
from storage.dataset.batches import pack_batch
from storage.dataset.chunks import unpack_rows
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from storage.stores.locations import DATASET_FORMAT, AnyPath, check_target_folder, parse_path

HELP = """Draw a synthetic dataset of any size from a fitted model.

The dataset has the features of the fit. If the model has segments, the rows are divided among them
in proportion to the fitted rows, with at least two rows each, one segment after the other. The same
artifact, number of rows and seed give the same dataset, wherever the work runs.
"""
EXAMPLES = f"""Examples:

    python -m flows.sample --artifact runs/votes --rows 100000 --output s.zarr
    python -m flows.fit --dataset s.zarr

{EXIT_CODES}"""
app = make_app("sample", HELP, EXAMPLES)


@Option(name="*")
@dataclass(frozen=True)
class SampleOptions:
    """The options of the command, and the parameters of the flow."""

    artifact: ArtifactPath
    rows: Annotated[
        WholeNumber, Option(group=OUTPUT, help="Number of rows to draw."), ExampleValue(1000)
    ]
    output: Annotated[
        str, Option(group=OUTPUT, help="Dataset folder to write."), ExampleValue("sample.zarr")
    ]
    seed: Seed = 0
    where: Where = field(default_factory=ExecutorOptions)
    overwrite: Overwrite = False


@dataclass(frozen=True)
class SampleJob:
    """A checked request for a dataset: its model and its folder."""

    options: SampleOptions
    fitted: LoadedModel
    output: AnyPath
    open_executor: Callable[[], AbstractContextManager[Executor]]


def prepare_sample(options: SampleOptions) -> SampleJob:
    """Check everything that can be checked before the work starts."""
    open_executor = prepare_executor(**options.where)
    check_seed(options.seed)
    if options.rows < 2:
        raise FitError(f"{{rows}} is {options.rows}. Choose at least 2.")
    output = parse_path(options.output)
    check_target_folder(output, DATASET_FORMAT, options.overwrite)
    fitted = load_fitted_model(parse_path(options.artifact))
    check_can_sample(fitted.model)
    if find_continuous(fitted.features):
        check_has_continuous_features(fitted.model)
    divide_among_segments(fitted.params, options.rows)
    return SampleJob(options, fitted, output, open_executor)


@make_flow("sample", SampleOptions)
def sample(options: SampleOptions) -> dict[str, Any]:
    """Draw a synthetic dataset from a fitted model."""
    return run_sample(prepare_sample(options))


def run_sample(job: SampleJob) -> dict[str, Any]:
    """Run the stages of a checked job."""
    names = (job.fitted.plane_names, job.fitted.artifact.manifest["segment_names"])
    return run_stages(job.open_executor, names, partial(_run_stages, job))


def _run_stages(job: SampleJob, stages: StageRunner, progress: Progress) -> dict[str, Any]:
    write = partial(_write_dataset, job, stages.executor, progress)
    dataset = stages.run("write dataset", write)
    return {
        **summarize_dataset(dataset),
        "artifact": str(job.fitted.artifact.path.resolve()),
        "model": job.fitted.model.name,
    }


def _write_dataset(job: SampleJob, executor: Executor, progress: Progress) -> BinaryDataset:
    """Draw ranges of rows on the workers, and write them in order."""
    fitted, n_rows, seed = job.fitted, job.options.rows, job.options.seed
    n_planes = len(fitted.plane_names)
    tasks = list(iter_sampling_tasks(*divide_among_segments(fitted.params, n_rows), n_planes))
    has_numbers = bool(find_continuous(fitted.features))
    draw: Callable[[SamplingTask], Any] = partial(
        draw_model_rows_with_numbers if has_numbers else draw_model_rows,
        fitted.model,
        ArtifactReader.from_artifact(fitted.artifact),
        seed,
    )
    group = fitted.artifact.manifest.get("group")
    with create_dataset(
        job.output,
        fitted.feature_names,
        feature_levels=fitted.artifact.manifest.get("feature_levels", {}),
        nominal_features=fitted.artifact.manifest.get("nominal_features", ()),
        columns=() if group is None else (group,),
        expected_rows=n_rows,
        attributes=_make_attributes(fitted, seed),
        overwrite=job.options.overwrite,
    ) as writer:
        done = 0
        progress("sample", done, n_rows, done)
        for task, drawn in zip(tasks, executor.map(draw, tasks), strict=True):
            packed, numbers = drawn if has_numbers else (drawn, None)
            X = sum_planes(unpack_rows(packed, n_planes), fitted.features)
            labels = _make_segment_labels(fitted, task)
            columns = {} if group is None or labels is None else {group: labels}
            writer.add(pack_batch(X, None, columns, numbers=numbers), labels)
            done += len(X)
            progress("sample", done, n_rows, done)
    return open_dataset(job.output)


def _make_segment_labels(fitted: LoadedModel, task: SamplingTask) -> np.ndarray | None:
    if not task.segments:
        return None
    names = [fitted.artifact.manifest["segment_names"][index] for index in task.segments]
    return np.repeat(names, task.n_rows)


def _make_attributes(fitted: LoadedModel, seed: int) -> dict[str, Any]:
    """Record the model, and its mixing matrix as the truth for `flows.fit --truth`."""
    source = {
        "artifact": str(fitted.artifact.path.resolve()),
        "digest": fitted.digest,
        "model": fitted.model.name,
        "seed": seed,
    }
    mixing = fitted.artifact.get("mixing")
    truth = {} if mixing is None else {"truth": {"mixing": mixing.tolist()}}
    return {"sampled_from": source, **truth}


@app.default
def main(*, options: SampleOptions, json: Json = False) -> None:
    """Run the flow and print its summary."""
    work = partial(run_sample, prepare_sample(options))
    run_command("sample", options, work, json, print_ingest)


if __name__ == "__main__":
    run_app(app)
