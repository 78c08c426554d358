"""Fits a model to a dataset and leaves an artifact: `python -m flows.fit --dataset PATH`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from dask.system import CPU_COUNT
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.checkpoints import load_state, load_statistics, save_state, save_statistics
from flows.datasets import dataset_path, dataset_rows, true_mixing
from flows.hyperparameters import build_model, settings_help
from flows.memory import check_memory
from flows.options import (
    Cluster,
    DatasetName,
    Json,
    Resume,
    Seed,
    Switch,
    Where,
    Workers,
    command,
    local_path,
    run,
)
from flows.peak_memory import peak_memory
from flows.progress import reporting
from flows.provenance import fingerprint, outcome, provenance
from flows.runtime import ExecutorName, check_executor, memory_for_rows, opened_executor
from flows.server import with_server
from flows.splits import split_to_fit
from flows.summary import print_json, print_table
from pipeline.blocks import Rows
from pipeline.errors import FitError
from pipeline.executors.base import Executor
from pipeline.fit import FitState, check_seed, collect_first, collect_pass, start
from pipeline.fit import fit as fit_model
from pipeline.metrics import mean_cosine_similarity
from pipeline.models.base import Model
from pipeline.params import named_arrays
from pipeline.progress import Progress
from storage.artifacts import NamedArray, load_artifact, write_artifact
from storage.dataset import BinaryDataset, open_dataset
from storage.kept_chunks import forget_chunks
from storage.runs import RunFolder

HELP = """Fit a latent-variable model to a binary dataset.

Reads the dataset, counts on a Dask cluster of its own or on one given, fits, and writes an
artifact: parameters, diagnostics and provenance. Where the dataset has a split `train`, its rows
alone are fitted; `--split all` takes all. The same dataset, options, versions and kind of
processor give the same parameters, to the last bit, wherever the work ran.
"""
EXAMPLES = """Examples:

    python -m flows.fit --dataset example:digits
    python -m flows.fit --dataset clicks.zarr --components 10 --workers 4
    python -m flows.fit --dataset votes.zarr --set estimator=arcsine --json
    python -m flows.fit --dataset votes.zarr --model blica --components auto
    python -m flows.fit --dataset clicks.zarr --cluster tcp://scheduler:8786 --resume

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
log = logging.getLogger("latentbits")
app = command("fit", HELP, settings_help() + EXAMPLES)


@dataclass
class Job:
    """One run of the flow: what its stages share within this process."""

    model: Model
    dataset: BinaryDataset
    split: str | None
    seed: int
    run: RunFolder
    executor: Executor
    progress: Progress
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, dict[str, int | None]] = field(default_factory=dict)

    @property
    def rows(self) -> Rows:
        """The rows to fit; they stay in memory where passes come back to them."""
        memory = memory_for_rows(self.executor) if self.model.max_iter > 1 else 0
        return dataset_rows(self.dataset, self.split, memory)


_job: ContextVar[Job] = ContextVar("job")


@contextmanager
def _stage(name: str) -> Iterator[Job]:
    """Measure a stage, and name features and segments in what it has to say."""
    job = _job.get()
    begun = time.perf_counter()
    try:
        yield job
        job.peaks[name] = peak_memory(job.executor)
    except FitError as error:
        names = (job.dataset.feature_names, job.dataset.segment_names)
        raise FitError(error.notice.render(*names)) from error
    finally:
        job.seconds[name] = time.perf_counter() - begun


@task(name="open", cache_policy=NO_CACHE)
def open_stage() -> None:
    """Check that the run can be done before any work is spent on it."""
    with _stage("open") as job:
        need = job.model.memory(job.dataset.n_features, job.dataset.n_segments, CPU_COUNT)
        check_memory(need, job.dataset.n_features)


@task(name="first counts", cache_policy=NO_CACHE)
def first_stage(work: str) -> str:
    """Sum what the model needs to start."""
    with _stage(_job.get().model.first.label) as job:
        return save_statistics(
            Path(work, "first"),
            lambda: collect_first(job.model, job.rows, job.executor, job.progress),
        )


@task(name="pass", cache_policy=NO_CACHE)
def pass_stage(work: str, first: str) -> str:
    """Sum the statistics of the first pass."""
    with _stage(_job.get().model.statistics.label) as job:
        state = _started(job, first)
        return save_statistics(
            Path(work, "pass"),
            lambda: collect_pass(job.model, state, job.rows, job.executor, job.seed, job.progress),
        )


@task(name="fit", cache_policy=NO_CACHE)
def fit_stage(work: str, first: str, statistics: str) -> str:
    """Fit from the statistics; iterative models go on with further passes."""
    with _stage("fit") as job:
        folder = Path(work, "states")
        state = load_state(job.model, folder)
        collected = None if state else load_statistics(job.model.statistics, Path(statistics))
        fit_model(
            job.model,
            job.rows,
            job.executor,
            job.seed,
            state=state or _started(job, first),
            statistics=collected,
            checkpoint=lambda done: save_state(folder, done),
            progress=job.progress,
        )
        return str(folder)


@task(name="write artifact", cache_policy=NO_CACHE)
def write_stage(states: str) -> dict[str, Any]:
    """Write the artifact, then point to it as the latest."""
    with _stage("write artifact") as job:
        state = load_state(job.model, Path(states))
        assert state is not None
        target = job.run.new_artifact()
        arrays = {name: NamedArray(*a) for name, a in named_arrays(state.params).items()}
        manifest = _manifest(job, state)
        write_artifact(target, arrays, manifest)
        job.run.point_to(target)
        return {"artifact": str(target), **_summary(manifest)}


@task(name="report", cache_policy=NO_CACHE)
def report_stage(artifact: str) -> str | None:
    """Draw the report within the artifact; that it cannot be drawn is no reason to lose a fit."""
    with _stage("report"):
        try:
            from flows.report.page import FILE, write_report
            from flows.report.server import publish_summary

            output = Path(artifact, FILE)
            write_report(artifact, output)
            publish_summary(artifact, output)
            return str(output)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            log.warning("warning: no report could be drawn (%s); the artifact is whole", reason)
            return None


def _started(job: Job, first: str) -> FitState:
    return start(job.model, load_statistics(job.model.first, Path(first)), job.seed)


def _manifest(job: Job, state: FitState) -> dict[str, Any]:
    counted = load_statistics(job.model.first, job.run.work / "first")
    return {
        **provenance(job.model, job.dataset, job.split, job.seed),
        **outcome(job.model, job.dataset, state),
        "n_samples": counted.n_samples,
        "seconds_by_stage": {name: round(s, 3) for name, s in job.seconds.items()},
        "peak_memory_by_stage": job.peaks,
    }


def _summary(manifest: dict[str, Any]) -> dict[str, Any]:
    names = ("model", "split", "n_samples", "n_components", "iterations", "converged", "warnings")
    return {
        **{name: manifest[name] for name in names},
        "n_features": len(manifest["feature_names"]),
        "n_segments": len(manifest["segment_names"]),
        "objective": manifest["history"][-1],
        "diagnostics": manifest["diagnostics"],
    }


@flow(name="fit", validate_parameters=False)
def fit(
    dataset: str,
    model: str = "clipped-pca",
    components: str | None = None,
    settings: Sequence[str] = (),
    split: str | None = None,
    output: str | None = None,
    seed: int = 0,
    executor: ExecutorName = "dask",
    workers: int | None = None,
    cluster: str | None = None,
    resume: bool = False,
    truth: bool = False,
    report: bool = True,
) -> dict[str, Any]:
    """Run the stages; `python -m flows.fit --help` explains the parameters."""
    begun = time.perf_counter()
    built, opened = prepare(dataset, model, components, settings, split, seed, truth)
    split = split_to_fit(opened, split)
    folder = _run_folder(built, opened, split, seed, output)
    with (
        opened_executor(executor, workers, cluster) as ready,
        folder.working(resume),
        reporting() as progress,
    ):
        token = _job.set(Job(built, opened, split, seed, folder, ready, progress))
        try:
            summary = _run_stages(str(folder.work))
            summary["report"] = report_stage(summary["artifact"]) if report else None
            seconds = _job.get().seconds
        except FitError:
            if not resume and not folder.has_states():
                folder.close_work()  # refused before the first pass was done: nothing is lost
            raise
        finally:
            _job.reset(token)
            forget_chunks()
        folder.close_work()
    if truth:
        fitted = load_artifact(summary["artifact"])
        summary["mcs"] = mean_cosine_similarity(fitted["mixing"], true_mixing(opened))
    return {**summary, "seconds": round(time.perf_counter() - begun, 3), "stages": seconds}


def prepare(
    dataset: str,
    model: str,
    components: str | None,
    settings: Sequence[str],
    split: str | None,
    seed: int,
    truth: bool,
) -> tuple[Model, BinaryDataset]:
    """Refuse what can be refused at once: options, the dataset's manifest, its split and truth."""
    built = build_model(model, components, settings)
    check_seed(seed)
    opened = open_dataset(dataset_path(dataset))
    split_to_fit(opened, split)
    if truth:
        true_mixing(opened)
        if all(param.name != "mixing" for param in fields(built.params)):
            raise FitError(
                f"--truth: Expected a model with a mixing matrix, got {model}. Leave out --truth."
            )
    return built, opened


def _run_stages(work: str) -> dict[str, Any]:
    model = _job.get().model
    open_stage()
    first = first_stage.with_options(name=model.first.label)(work)
    statistics = pass_stage.with_options(name=model.statistics.label)(work, first)
    return write_stage(fit_stage(work, first, statistics))


def _run_folder(
    model: Model, dataset: BinaryDataset, split: str | None, seed: int, output: str | None
) -> RunFolder:
    folder = local_path(output) if output else Path("runs") / dataset.path.resolve().stem
    described = provenance(model, dataset, split, seed)
    return RunFolder(folder, model.name, fingerprint(described))


@app.default
def main(
    *,
    dataset: DatasetName,
    model: Annotated[str, Parameter(help="Name of the model.")] = "clipped-pca",
    components: Annotated[
        str | None, Parameter(help="Number of latent components, or auto. [default: the model's]")
    ] = None,
    setting: Annotated[
        tuple[str, ...],
        Parameter(
            name="--set",
            negative="",
            show_default=False,
            help="NAME=VALUE, as listed below.",
        ),
    ] = (),
    split: Annotated[
        str | None,
        Parameter(
            help="Fit the rows whose `split` column has this value, or all rows. "
            "[default: train where there is one, else all]"
        ),
    ] = None,
    output: Annotated[str | None, Parameter(help="Folder of runs. [default: runs/DATASET]")] = None,
    seed: Seed = 0,
    executor: Where = "dask",
    workers: Workers = None,
    cluster: Cluster = None,
    resume: Resume = False,
    truth: Annotated[
        bool,
        Switch,
        Parameter(help="Compare the mixing with the one that the dataset was made with."),
    ] = False,
    report: Annotated[
        bool, Parameter(negative="--no-report", help="Draw a report into the artifact.")
    ] = True,
    json: Json = False,
) -> None:
    """Run the flow and print its summary."""
    parameters = {
        "dataset": dataset,
        "model": model,
        "components": components,
        "settings": setting,
        "split": split,
        "output": output,
        "seed": seed,
        "executor": executor,
        "workers": workers,
        "cluster": cluster,
        "resume": resume,
        "truth": truth,
        "report": report,
    }
    check_executor(executor, workers, cluster)
    prepare(dataset, model, components, setting, split, seed, truth)
    summary = with_server(lambda: fit(**parameters))
    if json:
        print_json(summary)
    else:
        print_table(summary)


if __name__ == "__main__":
    run(app)
