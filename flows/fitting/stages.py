"""What a fit does, stage by stage; each leaves what it found in the folder of the work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from dask.system import CPU_COUNT

from flows.cli.summary import fit_summary
from flows.fitting.checkpoints import load_state, load_statistics, save_state, save_statistics
from flows.fitting.damage import damage_warnings, find_damaged, skipped_chunks
from flows.fitting.drift import drift_since
from flows.fitting.job import Job
from flows.fitting.provenance import outcome, provenance
from flows.running.memory import check_memory
from flows.running.stages import Stages
from pipeline.fit import FitState, collect_first, collect_pass, fit, start
from pipeline.models.base import Warm
from pipeline.params import named_arrays
from storage.artifacts import NamedArray, write_artifact
from storage.locations import place, replace_folder

log = logging.getLogger("latentbits")


def run_stages(job: Job, stages: Stages, report: bool) -> dict[str, Any]:
    """Fit, and give the summary of what was written."""
    stages.run("open", partial(_check_need, job))
    if job.skip_corrupt:
        stages.run("check chunks", partial(_skip_damaged, job))
    stages.run(job.model.first.label, partial(_count_first, job))
    stages.run(job.model.statistics.label, partial(_count_pass, job))
    stages.run("fit", partial(_fit, job))
    drift = stages.run("drift", partial(_drift, job))
    summary = stages.run("write artifact", partial(_write, job, drift, stages.usage))
    drawn = stages.run("report", partial(_report, summary["artifact"])) if report else None
    return {**summary, "report": drawn}


def _check_need(job: Job) -> None:
    """Check that the fit can be done before any work is spent on it."""
    need = job.model.memory(job.dataset.n_features, job.dataset.n_segments, CPU_COUNT)
    check_memory(need, job.dataset.n_features)


def _skip_damaged(job: Job) -> None:
    """Find damaged chunks, to leave them out."""
    job.skipped = find_damaged(job, job.run.work)


def _count_first(job: Job) -> None:
    """Sum what the model needs to start."""
    kept = job.kept(job.model.first, "first")
    save_statistics(
        job.run.work / "first",
        lambda: collect_first(job.model, job.rows, job.executor, job.progress, kept),
    )


def _count_pass(job: Job) -> None:
    """Sum the statistics of the first pass."""
    state = _started(job)
    kept = job.kept(job.model.statistics, job.model.counted(job.dataset.n_features))
    save_statistics(
        job.run.work / "pass",
        lambda: collect_pass(
            job.model, state, job.rows, job.executor, job.seed, job.progress, kept
        ),
    )


def _fit(job: Job) -> None:
    """Fit from the statistics; iterative models go on with further passes."""
    state = load_state(job.model, job.run.states)
    first_pass = None if state else load_statistics(job.model.statistics, job.run.work / "pass")
    fit(
        job.model,
        job.rows,
        job.executor,
        job.seed,
        state=state or _started(job),
        statistics=first_pass,
        checkpoint=partial(save_state, job.run.states),
        progress=job.progress,
    )


def _started(job: Job) -> FitState:
    first = load_statistics(job.model.first, job.run.work / "first")
    state = start(job.model, first, job.seed)
    if job.start is not None and isinstance(job.model, Warm):
        return job.model.warm(state, job.start.params)
    return state


def _fitted(job: Job) -> FitState:
    state = load_state(job.model, job.run.states)
    assert state is not None
    return state


def _drift(job: Job) -> dict[str, Any] | None:
    """Say what changed since the latest fit, where this one has its rows and more."""
    with _without_loss("what changed since the last fit is not known"):
        return drift_since(job, _fitted(job))
    return None


def _write(job: Job, drift: dict[str, Any] | None, usage: dict[str, Any]) -> dict[str, Any]:
    """Write the artifact, then point to it as the latest."""
    state = _fitted(job)
    target, unfinished = job.run.new_artifact(), job.run.work / "artifact"
    arrays = {name: NamedArray(*a) for name, a in named_arrays(state.params).items()}
    manifest = {**_manifest(job, state), "drift": drift, "usage_by_stage": usage}
    write_artifact(unfinished, arrays, manifest)
    replace_folder(unfinished, target)
    job.run.point_to(target)
    return {"artifact": str(target), **fit_summary(manifest)}


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
    }


def _report(artifact: str) -> str | None:
    """Draw the report within the artifact, and publish it where a Prefect server is configured."""
    with _without_loss("no report could be drawn"):
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
