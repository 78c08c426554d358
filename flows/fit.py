"""Fits a model to a dataset and leaves an artifact: `python -m flows.fit --dataset PATH`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import Parameter
from dask.system import CPU_COUNT
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.checkpoints import load_state, load_statistics, save_state, save_statistics
from flows.damage import damage_warnings, find_damaged, skipped_chunks
from flows.datasets import dataset_path, true_mixing
from flows.drift import drift_since
from flows.hyperparameters import build_model, settings_help
from flows.job import Job
from flows.memory import check_memory
from flows.options import HERE, DatasetName, Json, Resume, Seed, Switch, Where, command, run
from flows.progress import reporting
from flows.provenance import fingerprint, outcome, provenance
from flows.retries import RETRIES
from flows.runtime import check_executor, opened_executor
from flows.server import check_schedule, with_server
from flows.splits import split_to_fit
from flows.summary import fit_summary, print_json, print_table
from flows.usage import read_usage, usage_since
from flows.warm_start import warm_start as find_start
from pipeline.errors import FitError
from pipeline.fit import FitState, check_seed, collect_first, collect_pass, start
from pipeline.fit import fit as fit_model
from pipeline.metrics import mean_cosine_similarity
from pipeline.models.base import Model, Warm
from pipeline.params import named_arrays
from storage.artifacts import NamedArray, load_artifact, write_artifact
from storage.dataset import BinaryDataset, open_dataset
from storage.kept_chunks import forget_chunks
from storage.locations import Place, place, replace_folder
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
    python -m flows.fit --dataset clicks.zarr --cluster production --resume
    python -m flows.fit --dataset clicks.zarr --model latent-trait --warm-start

Exit codes: 0 done, 2 bad arguments or input, 1 failure, 130 interrupted.
"""
log = logging.getLogger("latentbits")
app = command("fit", HELP, settings_help() + EXAMPLES)


_job: ContextVar[Job] = ContextVar("job")


@contextmanager
def _stage(name: str) -> Iterator[Job]:
    """Measure a stage, and name features and segments in what it has to say."""
    job = _job.get()
    before = read_usage(job.executor)
    try:
        yield job
        job.usage[name] = usage_since(before, read_usage(job.executor))
    except FitError as error:
        names = (job.dataset.feature_names, job.dataset.segment_names)
        raise FitError(error.notice.render(*names)) from error


@task(name="open", cache_policy=NO_CACHE, **RETRIES)
def open_stage() -> None:
    """Check that the run can be done before any work is spent on it."""
    with _stage("open") as job:
        need = job.model.memory(job.dataset.n_features, job.dataset.n_segments, CPU_COUNT)
        check_memory(need, job.dataset.n_features)


@task(name="check chunks", cache_policy=NO_CACHE, **RETRIES)
def check_stage(work: str) -> None:
    """Find damaged chunks, which `--skip-corrupt` leaves out."""
    with _stage("check chunks") as job:
        job.skipped = find_damaged(job, place(work))


@task(name="first counts", cache_policy=NO_CACHE, **RETRIES)
def first_stage(work: str) -> str:
    """Sum what the model needs to start."""
    with _stage(_job.get().model.first.label) as job:
        kept = job.kept(job.model.first, "first")
        return save_statistics(
            place(work) / "first",
            lambda: collect_first(job.model, job.rows, job.executor, job.progress, kept),
        )


@task(name="pass", cache_policy=NO_CACHE, **RETRIES)
def pass_stage(work: str, first: str) -> str:
    """Sum the statistics of the first pass."""
    with _stage(_job.get().model.statistics.label) as job:
        state = _started(job, first)
        counted = job.model.counted(job.dataset.n_features)
        kept = job.kept(job.model.statistics, counted)
        return save_statistics(
            place(work) / "pass",
            lambda: collect_pass(
                job.model, state, job.rows, job.executor, job.seed, job.progress, kept
            ),
        )


@task(name="fit", cache_policy=NO_CACHE, **RETRIES)
def fit_stage(work: str, first: str, statistics: str) -> str:
    """Fit from the statistics; iterative models go on with further passes."""
    with _stage("fit") as job:
        folder = place(work) / "states"
        state = load_state(job.model, folder)
        collected = None if state else load_statistics(job.model.statistics, place(statistics))
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


@task(name="drift", cache_policy=NO_CACHE, **RETRIES)
def drift_stage(states: str) -> dict[str, Any] | None:
    """Say what changed since the latest fit, where this one has its rows and more."""
    with _without_loss("what changed since the last fit is not known"), _stage("drift") as job:
        state = load_state(job.model, place(states))
        assert state is not None
        return drift_since(job, state)
    return None


@task(name="write artifact", cache_policy=NO_CACHE, **RETRIES)
def write_stage(states: str, drift: dict[str, Any] | None) -> dict[str, Any]:
    """Write the artifact, then point to it as the latest."""
    with _stage("write artifact") as job:
        state = load_state(job.model, place(states))
        assert state is not None
        target, unfinished = job.run.new_artifact(), job.run.work / "artifact"
        arrays = {name: NamedArray(*a) for name, a in named_arrays(state.params).items()}
        manifest = {**_manifest(job, state), "drift": drift}
        write_artifact(unfinished, arrays, manifest)
        replace_folder(unfinished, target)
        job.run.point_to(target)
        return {"artifact": str(target), **fit_summary(manifest)}


@task(name="report", cache_policy=NO_CACHE, **RETRIES)
def report_stage(artifact: str) -> str | None:
    """Draw the report within the artifact, and publish it where a Prefect server is configured."""
    with _stage("report"), _without_loss("no report could be drawn"):
        from flows.report.page import FILE, draw_report, write_report
        from flows.report.server import publish

        output = place(artifact) / FILE
        report = draw_report(artifact)
        write_report(report, output)
        with _without_loss("the report could not be published on the Prefect server"):
            publish(report, output)
        return str(output)
    return None


@contextmanager
def _without_loss(trouble: str) -> Iterator[None]:
    """Turn an error into a warning: what comes after a fit is no reason to lose it."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        log.warning("warning: %s (%s); the fit is not lost", trouble, reason)


def _started(job: Job, first: str) -> FitState:
    state = start(job.model, load_statistics(job.model.first, place(first)), job.seed)
    if job.start is not None and isinstance(job.model, Warm):
        return job.model.warm(state, job.start.params)
    return state


def _manifest(job: Job, state: FitState) -> dict[str, Any]:
    counted = load_statistics(job.model.first, job.run.work / "first")
    ended = outcome(job.model, job.dataset, state)
    return {
        **provenance(job.model, job.dataset, job.split, job.seed, job.start),
        "skip_corrupt": job.skip_corrupt,
        "skipped_chunks": skipped_chunks(job.dataset, job.skipped),
        **ended,
        "warnings": [*damage_warnings(job.dataset, job.skipped), *ended["warnings"]],
        "n_samples": counted.n_samples,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "usage_by_stage": job.usage,
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
    where: Where = HERE,
    resume: bool = False,
    truth: bool = False,
    report: bool = True,
    warm_start: bool = False,
    skip_corrupt: bool = False,
) -> dict[str, Any]:
    """Run the stages; `python -m flows.fit --help` explains the parameters."""
    check_schedule()
    begun = time.perf_counter()
    built, opened = prepare(dataset, model, components, settings, split, seed, truth)
    runs, before = _runs(opened, output), None
    if warm_start:
        built, before = find_start(built, components, opened, runs)
    split = split_to_fit(opened, split)
    described = provenance(built, opened, split, seed, before)
    described["skip_corrupt"] = skip_corrupt
    folder = RunFolder(runs, built.name, fingerprint(described))
    with (
        opened_executor(**where) as ready,
        folder.working(resume),
        reporting() as progress,
    ):
        job = Job(built, opened, split, seed, before, folder, ready, progress, skip_corrupt)
        token = _job.set(job)
        try:
            summary = _run_stages(str(folder.work))
            summary["report"] = report_stage(summary["artifact"]) if report else None
            seconds = {name: used["seconds"] for name, used in job.usage.items()}
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
    if _job.get().skip_corrupt:
        check_stage(work)
    first = first_stage.with_options(name=model.first.label)(work)
    statistics = pass_stage.with_options(name=model.statistics.label)(work, first)
    states = fit_stage(work, first, statistics)
    return write_stage(states, drift_stage(states))


def _runs(dataset: BinaryDataset, output: str | None) -> Place:
    return place(output) if output else place("runs") / dataset.path.resolve().stem


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
    where: Where = HERE,
    resume: Resume = False,
    truth: Annotated[
        bool,
        Switch,
        Parameter(help="Compare the mixing with the one that the dataset was made with."),
    ] = False,
    report: Annotated[
        bool, Parameter(negative="--no-report", help="Draw a report into the artifact.")
    ] = True,
    warm_start: Annotated[
        bool,
        Switch,
        Parameter(help="Begin at the latest fit in the folder of runs; for models that iterate."),
    ] = False,
    skip_corrupt: Annotated[
        bool,
        Switch,
        Parameter(help="Leave out damaged chunks, with a warning; reads all of them first."),
    ] = False,
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
        "where": where,
        "resume": resume,
        "truth": truth,
        "report": report,
        "warm_start": warm_start,
        "skip_corrupt": skip_corrupt,
    }
    check_executor(**where)
    built, opened = prepare(dataset, model, components, setting, split, seed, truth)
    if warm_start:
        find_start(built, components, opened, _runs(opened, output))
    summary = with_server(lambda: fit(**parameters))
    if json:
        print_json(summary)
    else:
        print_table(summary)


if __name__ == "__main__":
    run(app)
