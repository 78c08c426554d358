"""What a fit does, stage by stage.

What a stage makes goes to the next in memory. It is left in the folder of the work too, which is
read where a run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from flows.cli.summary import fit_summary
from flows.fitting.checkpoints import States, counted, load_state
from flows.fitting.damage import damage_warnings, find_damaged, skipped_chunks
from flows.fitting.drift import drift_since
from flows.fitting.job import Job
from flows.fitting.provenance import outcome
from flows.fitting.strips import StripReader
from flows.running.memory import check_memory
from flows.running.row_results import write_runs
from flows.running.stages import Stages
from pipeline.fitting.loop import FitState, collect_first, collect_pass, fit, start
from pipeline.fitting.pair_work import taken_up, work_label, work_of
from pipeline.models.capabilities import Warm
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import named_arrays
from pipeline.passes.feature_strips import FeaturePairs, widened
from pipeline.passes.row_ranges import Results
from pipeline.statistics.base import Statistics
from storage.artifacts.artifacts import PAIRS, NamedArray, write_artifact
from storage.codes.codes import open_codes, seal_codes
from storage.codes.results import WrittenRuns
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import place, replace_folder

log = logging.getLogger("latentbits")


def run_stages(job: Job, stages: Stages) -> dict[str, Any]:
    """Fit, and give the summary of what was written."""
    states = stages.run("open", partial(_open, job))
    if job.options.skip_corrupt:
        job = replace(job, skipped=stages.run("check chunks", partial(find_damaged, job)))
    first = stages.run(job.model.first.label, partial(_count_first, job))
    if before := work_label(job.model, job.dataset.n_features):
        stages.run(before, partial(_work_before, job, states, first))
    label = job.model.statistics.label
    label = label if label != job.model.first.label else f"{label} of the pass"
    if (done := states.latest) is not None and done.done:  # no pass is left to begin
        begun = Begun(done, None)
    else:
        begun = stages.run(label, partial(_begin, job, states, first))
    state = stages.run("fit", partial(_fit, job, states, begun))
    drift = stages.run("drift", partial(_drift, job, state, first.n_samples, begun.statistics))
    del begun  # its statistics may be large, and nothing needs them any more
    written = partial(_write, job, state, first.n_samples, drift, stages.usage)
    summary = stages.run("write artifact", written)
    report = partial(_report, summary["artifact"], job.dataset)
    drawn = stages.run("report", report) if job.options.report else None
    if job.truth is not None:
        summary["mcs"] = mean_cosine_similarity(state.params.mixing, job.truth)
    return {**summary, "report": drawn}


def _open(job: Job) -> States:
    """Check that the fit can be done before any work is spent on it, and where it goes on."""
    check_memory(job.need, job.dataset.n_features, job.limit, job.options.memory)
    folder = job.run.states
    return States(folder, load_state(job.model, folder) if job.options.resume else None)


def _count_first(job: Job) -> Statistics:
    """Sum what the model needs to start."""
    model, seed = job.model, job.options.seed
    kept = job.kept(model.first, model.first_counted(seed))
    collect = partial(collect_first, model, job.rows, job.executor, seed, job.progress, kept)
    return counted(model.first, job.run.work / "first", job.options.resume, collect)


def _work_before(job: Job, states: States, first: Statistics) -> None:
    """Do the work before all passes, but what another try or run did, and save the state."""
    if states.latest is not None:
        return
    state = _start(job, first)
    # Free memory changes: without a limit that was given, bytes must not depend on it.
    spare = None if job.options.memory is None else job.limit - job.need
    work = work_of(job.model, state, job.rows, spare)
    written = WrittenRuns(job.run.work / PAIRS)
    lengths = work.lengths(job.executor)
    length = work.run_length(sum(lengths))

    def told(done: int, total: int, stop: int) -> None:
        job.progress(work.label, done, total, work.rows_done(stop))

    make = partial(widened, work) if isinstance(work, FeaturePairs) else work
    sealed = write_runs(make, work.described(), lengths, length, written, job.executor, told)
    seal_codes(*sealed, {})
    codes = open_codes(written.codes.resolve(), "Fit again.")  # for workers elsewhere
    read = StripReader(codes, job.memory) if isinstance(work, FeaturePairs) else codes.read_chunk
    results = Results(codes.n_chunks, read)
    states.save(taken_up(job.model, state, results, job.executor, job.options.seed))


def _start(job: Job, first: Statistics) -> FitState:
    """Make the state before all passes, at the parameters of an earlier fit where that is asked."""
    state = start(job.model, first, job.options.seed)
    if job.start is not None and isinstance(job.model, Warm):
        state = job.model.warm(state, job.start.params)
    return state


class Begun(NamedTuple):
    """Where passes begin: a state, and the statistics of its pass where they were summed before.

    Those that do not depend on parameters serve every pass.
    """

    state: FitState
    statistics: Statistics | None


def _begin(job: Job, states: States, first: Statistics) -> Begun:
    """Start, and sum the statistics of the first pass; or go on where a run before was."""
    model, seed, state = job.model, job.options.seed, states.latest
    named = model.counted(job.dataset.n_features)
    if state is not None and (state.done or named is None):
        return Begun(state, None)
    if state is None:
        state = _start(job, first)
    kept = job.kept(model.statistics, named)
    collect = partial(collect_pass, model, state, job.rows, job.executor, seed, job.progress, kept)
    folder = job.run.work / "pass"
    return Begun(state, counted(model.statistics, folder, job.options.resume, collect))


def _fit(job: Job, states: States, begun: Begun) -> FitState:
    """Fit from the statistics; iterative models go on with further passes."""
    if states.latest is not None:  # another try goes on where the one before was
        is_same = job.model.counted(job.dataset.n_features) is not None
        begun = Begun(states.latest, begun.statistics if is_same else None)
    return fit(
        job.model,
        job.rows,
        job.executor,
        job.options.seed,
        state=begun.state,
        statistics=begun.statistics,
        checkpoint=states.save,
        progress=job.progress,
    )


def _drift(
    job: Job, state: FitState, n_samples: int, statistics: Statistics | None
) -> dict[str, Any] | None:
    """Say what changed since the latest fit, where this one has its rows and more."""
    with _without_loss("what changed since the last fit is not known"):
        return drift_since(job, state, n_samples, statistics)
    return None


def _write(
    job: Job,
    state: FitState,
    n_samples: int,
    drift: dict[str, Any] | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    """Write the artifact, then point to it as the latest."""
    target, unfinished = job.run.new_artifact(), job.run.work / "artifact"
    made, kept = WrittenRuns(job.run.work / PAIRS).codes, unfinished / PAIRS
    if kept.is_dir() and not made.is_dir():  # a run before came so far
        replace_folder(kept, made)
    arrays = {name: NamedArray(*a) for name, a in named_arrays(state.params).items()}
    manifest = {**_manifest(job, state, n_samples), "drift": drift, "usage_by_stage": usage}
    if _tabulates(job):
        manifest["pairs"] = open_codes(made).manifest["manifest_digest"]
    write_artifact(unfinished, arrays, manifest)
    if _tabulates(job):
        replace_folder(made, kept)
    replace_folder(unfinished, target)
    job.run.point_to(target)
    return {"artifact": str(target), **fit_summary(manifest, state.params)}


def _tabulates(job: Job) -> bool:
    return work_label(job.model, job.dataset.n_features) == FeaturePairs.label


def _manifest(job: Job, state: FitState, n_samples: int) -> dict[str, Any]:
    ended = outcome(job.model, job.dataset, state)
    return {
        **job.described,
        "skipped_chunks": skipped_chunks(job.dataset, job.skipped),
        **ended,
        "warnings": [*damage_warnings(job.dataset, job.skipped), *ended["warnings"]],
        "n_samples": n_samples,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _report(artifact: str, dataset: BinaryDataset) -> str | None:
    """Draw the report within the artifact, and publish it where a Prefect server is configured."""
    with _without_loss("no report could be drawn"):
        from flows.report.inputs import REPORT_FILE
        from flows.report.page import build_report_from_artifact, write_report
        from flows.report.server import publish_report

        output = place(artifact) / REPORT_FILE
        report = build_report_from_artifact(artifact, dataset=dataset)
        write_report(report, output)
        with _without_loss("the report could not be published on the Prefect server"):
            publish_report(report, output)
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
