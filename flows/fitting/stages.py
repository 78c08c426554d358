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

from flows.cli.summary import summarize_fit
from flows.fitting.checkpoints import CheckpointStore, collect_or_load, load_state
from flows.fitting.damage import (
    describe_skipped_chunks,
    find_damaged_chunks,
    warn_about_skipped_chunks,
)
from flows.fitting.drift import measure_drift
from flows.fitting.job import FitJob
from flows.fitting.provenance import describe_outcome
from flows.fitting.strips import StripReader
from flows.running.memory import check_memory
from flows.running.row_results import write_row_ranges
from flows.running.stages import StageRunner
from pipeline.fitting.loop import (
    FitState,
    collect_first_statistics,
    collect_pass_statistics,
    fit_model,
    start_fit,
)
from pipeline.fitting.pair_work import PairJob, get_pair_job_label
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import get_named_arrays
from pipeline.passes.feature_strips import FeaturePairJob, make_square_rows
from pipeline.passes.row_ranges import RangeResults
from pipeline.statistics.sums import Statistics
from storage.artifacts.artifacts import PAIRS_FOLDER, NamedArray, write_artifact
from storage.codes.codes import open_codes, seal_codes
from storage.codes.unfinished_codes import ResumableResults
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import parse_path, replace_folder

log = logging.getLogger("latentbits")


def run_fit_stages(job: FitJob, stages: StageRunner) -> dict[str, Any]:
    """Fit, and give the summary of what was written."""
    states = stages.run("open", partial(_open_checkpoints, job))
    if job.options.skip_corrupt:
        job = replace(job, skipped=stages.run("check chunks", partial(find_damaged_chunks, job)))
    first = stages.run(job.model.first_statistics.label, partial(_collect_first_statistics, job))
    if before := get_pair_job_label(job.model, job.dataset.n_features):
        stages.run(before, partial(_run_pair_work, job, states, first))
    label = job.model.statistics.label
    label = label if label != job.model.first_statistics.label else f"{label} of the pass"
    if (done := states.latest) is not None and done.done:  # no pass is left to begin
        begun = PassStart(done, None)
    else:
        begun = stages.run(label, partial(_start_passes, job, states, first))
    state = stages.run("fit", partial(_run_passes, job, states, begun))
    drift = stages.run(
        "drift", partial(_try_measure_drift, job, state, first.n_samples, begun.statistics)
    )
    del begun  # its statistics may be large, and nothing needs them any more
    written = partial(_save_artifact, job, state, first.n_samples, drift, stages.usage)
    summary = stages.run("write artifact", written)
    report = partial(_try_write_report, summary["artifact"], job.dataset)
    drawn = stages.run("report", report) if job.options.report else None
    if job.truth is not None:
        summary["mcs"] = mean_cosine_similarity(state.params.mixing, job.truth)
    return {**summary, "report": drawn}


def _open_checkpoints(job: FitJob) -> CheckpointStore:
    """Check that the fit can be done before any work is spent on it, and where it goes on."""
    check_memory(job.minimum_memory, job.dataset.n_features, job.memory_budget, job.options.memory)
    folder = job.run_folder.states_folder
    return CheckpointStore(folder, load_state(job.model, folder) if job.options.resume else None)


def _collect_first_statistics(job: FitJob) -> Statistics:
    """Sum what the model needs to start."""
    model, seed = job.model, job.options.seed
    kept = job.open_kept_statistics(model.first_statistics, model.first_key(seed))
    collect = partial(
        collect_first_statistics, model, job.rows, job.executor, seed, job.progress, kept
    )
    return collect_or_load(
        model.first_statistics, job.run_folder.work_folder / "first", job.options.resume, collect
    )


def _run_pair_work(job: FitJob, states: CheckpointStore, first: Statistics) -> None:
    """Do the pair work, unless an earlier try or run did it, and save the state."""
    if states.latest is not None:
        return
    states.save(_make_initial_state(job, first))


def _make_initial_state(job: FitJob, first: Statistics) -> FitState:
    """Create the state before all passes, with the results of pair work if the model has any."""
    # Free memory changes: unless the user set a limit, results must not depend on it.
    spare = None if job.options.memory is None else job.memory_budget - job.minimum_memory
    return start_fit(
        job.model,
        first,
        job.rows,
        job.executor,
        job.options.seed,
        initial_params=None if job.initial_fit is None else job.initial_fit.params,
        run_pairs=partial(_write_pair_results, job),
        spare_memory=spare,
    )


def _write_pair_results(job: FitJob, work: PairJob) -> RangeResults:
    """Run pair work and write its results to the work folder, from where they are read back."""
    written = ResumableResults(job.run_folder.work_folder / PAIRS_FOLDER)
    lengths = work.count_per_chunk(job.executor)
    length = work.choose_range_length(sum(lengths))

    def told(done: int, total: int, stop: int) -> None:
        job.progress(work.label, done, total, work.count_rows_done(stop))

    make = partial(make_square_rows, work) if isinstance(work, FeaturePairJob) else work
    sealed = write_row_ranges(
        make, work.describe_arrays(), lengths, length, written, job.executor, told
    )
    seal_codes(*sealed, {})
    codes = open_codes(written.codes_folder.resolve(), "Fit again.")  # for workers elsewhere
    read = (
        StripReader(codes, job.row_memory) if isinstance(work, FeaturePairJob) else codes.read_chunk
    )
    return RangeResults(codes.n_chunks, read)


class PassStart(NamedTuple):
    """Where passes begin: a state, and the statistics of its pass where they were summed before.

    Those that do not depend on parameters serve every pass.
    """

    state: FitState
    statistics: Statistics | None


def _start_passes(job: FitJob, states: CheckpointStore, first: Statistics) -> PassStart:
    """Start, and sum the statistics of the first pass; or go on where a run before was."""
    model, seed, state = job.model, job.options.seed, states.latest
    named = model.counts_key(job.dataset.n_features)
    if state is not None and (state.done or named is None):
        return PassStart(state, None)
    if state is None:
        state = _make_initial_state(job, first)
    kept = job.open_kept_statistics(model.statistics, named)
    collect = partial(
        collect_pass_statistics, model, state, job.rows, job.executor, seed, job.progress, kept
    )
    folder = job.run_folder.work_folder / "pass"
    return PassStart(state, collect_or_load(model.statistics, folder, job.options.resume, collect))


def _run_passes(job: FitJob, states: CheckpointStore, begun: PassStart) -> FitState:
    """Fit from the statistics; iterative models go on with further passes."""
    if states.latest is not None:  # another try goes on where the one before was
        is_same = job.model.counts_key(job.dataset.n_features) is not None
        begun = PassStart(states.latest, begun.statistics if is_same else None)
    return fit_model(
        job.model,
        job.rows,
        job.executor,
        job.options.seed,
        state=begun.state,
        statistics=begun.statistics,
        checkpoint=states.save,
        progress=job.progress,
    )


def _try_measure_drift(
    job: FitJob, state: FitState, n_samples: int, statistics: Statistics | None
) -> dict[str, Any] | None:
    """Say what changed since the latest fit, where this one has its rows and more."""
    with _warn_on_error("what changed since the last fit is not known"):
        return measure_drift(job, state, n_samples, statistics)
    return None


def _save_artifact(
    job: FitJob,
    state: FitState,
    n_samples: int,
    drift: dict[str, Any] | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    """Write the artifact, then point to it as the latest."""
    target, unfinished = (
        job.run_folder.make_artifact_path(),
        job.run_folder.work_folder / "artifact",
    )
    made, kept = (
        ResumableResults(job.run_folder.work_folder / PAIRS_FOLDER).codes_folder,
        unfinished / PAIRS_FOLDER,
    )
    if kept.is_dir() and not made.is_dir():  # a run before came so far
        replace_folder(kept, made)
    arrays = {name: NamedArray(*a) for name, a in get_named_arrays(state.params).items()}
    manifest = {**_make_manifest(job, state, n_samples), "drift": drift, "usage_by_stage": usage}
    if has_pair_tables(job):
        manifest["pairs"] = open_codes(made).manifest["manifest_digest"]
    write_artifact(unfinished, arrays, manifest)
    if has_pair_tables(job):
        replace_folder(made, kept)
    replace_folder(unfinished, target)
    job.run_folder.set_latest(target)
    return {"artifact": str(target), **summarize_fit(manifest, state.params)}


def has_pair_tables(job: FitJob) -> bool:
    """Return whether the fit counts feature pairs strip by strip."""
    return get_pair_job_label(job.model, job.dataset.n_features) == FeaturePairJob.label


def _make_manifest(job: FitJob, state: FitState, n_samples: int) -> dict[str, Any]:
    ended = describe_outcome(job.model, job.dataset, state)
    return {
        **job.provenance,
        "skipped_chunks": describe_skipped_chunks(job.dataset, job.skipped),
        **ended,
        "warnings": [*warn_about_skipped_chunks(job.dataset, job.skipped), *ended["warnings"]],
        "n_samples": n_samples,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _try_write_report(artifact: str, dataset: BinaryDataset) -> str | None:
    """Draw the report within the artifact, and publish it where a Prefect server is configured."""
    with _warn_on_error("no report could be drawn"):
        from flows.report.inputs import REPORT_FILE
        from flows.report.page import build_report_from_artifact, write_report
        from flows.report.server import publish_report

        output = parse_path(artifact) / REPORT_FILE
        report = build_report_from_artifact(artifact, dataset=dataset)
        write_report(report, output)
        with _warn_on_error("the report could not be published on the Prefect server"):
            publish_report(report, output)
        return str(output)
    return None


@contextmanager
def _warn_on_error(trouble: str) -> Iterator[None]:
    """Turn an error into a warning: what comes after a fit is no reason to lose it."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        log.warning("warning: %s (%s); the fit is not lost", trouble, reason)
