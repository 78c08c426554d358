"""The stages of a fit.

Each stage passes its result to the next in memory and also saves it in the work folder, so that
`--resume` can continue from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from flows.cli.progress import log, warn_on_error
from flows.cli.summary import join_names, summarize_fit
from flows.fitting.checkpoints import CheckpointStore, collect_or_load, load_state
from flows.fitting.drift import (
    DriftEvent,
    emit_drift_event,
    find_drift_alert,
    find_omission,
    measure_drift,
)
from flows.fitting.job import FitJob, FitPlan
from flows.fitting.provenance import is_of_leading_rows
from flows.report.lineage import publish_fit
from flows.running.environment import is_server_configured
from flows.running.flow import StageRunner, is_transient, run_stages
from flows.running.resources import check_memory, release_free_memory
from flows.running.row_results import write_row_ranges
from pipeline.data.features import list_features, list_plane_names
from pipeline.errors import FitError
from pipeline.evaluation.records import describe_outcome
from pipeline.executors.progress import Progress
from pipeline.fitting.class_numbers import add_class_numbers
from pipeline.fitting.fit_pass import collect_pass_statistics
from pipeline.fitting.fit_statistics import add_fit_statistics
from pipeline.fitting.linkage import get_linkage_key
from pipeline.fitting.loop import collect_first_statistics, fit_model, start_fit
from pipeline.fitting.pair_work import PairJob, get_pair_job_label
from pipeline.inference.anchors import anchor_fit
from pipeline.inference.orientation import orient_fit
from pipeline.models.state import FitState
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import get_named_arrays
from pipeline.passes.feature_strips import EarlierStrips, FeaturePairJob, make_square_rows
from pipeline.passes.row_ranges import ArrayDescriptions, Arrays, RangeResults, RowRange
from pipeline.statistics.linkage import Linkage
from pipeline.statistics.sums import Statistics
from storage.artifacts.artifacts import (
    PAIRS_FOLDER,
    NamedArray,
    load_artifact,
    load_packed,
    write_artifact,
    write_packed,
)
from storage.artifacts.retention import RetentionRule, delete_removal, find_removals
from storage.codes.codes import Codes, ResumableResults, open_codes, seal_codes
from storage.dataset.chunks import clear_chunk_cache, get_or_read_chunk
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError, LeaseLostError
from storage.extras import REPORT_PACKAGES, check_installed
from storage.stores.leases import check_leases, keep_leases
from storage.stores.locations import (
    LATEST_NAME,
    MANIFEST_NAME,
    AnyPath,
    parse_path,
    replace_folder,
)

_MAX_NAMED_CHUNKS = 8


def run_fit(plan: FitPlan) -> dict[str, Any]:
    """Run the stages of a checked fit, and return its summary."""
    names = (list_plane_names(plan.dataset), plan.dataset.segment_names)
    claim = plan.run_folder.claim_work(plan.options.resume)
    summary = run_stages(plan.open_executor, names, partial(_run_fit_stages, plan), claim)
    if plan.retention is not None:
        with warn_on_error("Old fits could not be deleted"):
            _delete_old_fits(plan.run_folder.output, plan.retention)
    return summary


def _delete_old_fits(runs: AnyPath, rule: RetentionRule) -> None:
    removals = [removal for removal in find_removals(runs, rule) if delete_removal(removal)]
    for removal in removals:
        log.info("Deleted the %s %s.", removal.kind, removal.folder)
    text = "runs_to_keep: deleted %d old folders, %s."
    log.info(text, len(removals), decimal(sum(removal.n_bytes for removal in removals)))


def _run_fit_stages(plan: FitPlan, stages: StageRunner, progress: Progress) -> dict[str, Any]:
    job = FitJob(**vars(plan), executor=stages.executor, progress=progress)
    try:
        summary = _fit_and_save(job, stages)
    except (FitError, DataError) as error:
        is_new = not plan.options.resume and not plan.run_folder.has_states()
        if is_new and not is_transient(error) and not isinstance(error, LeaseLostError):
            plan.run_folder.delete_work()  # no pass was finished, so there is nothing to resume
        raise
    check_leases()
    plan.run_folder.delete_work()
    return summary


def _fit_and_save(job: FitJob, stages: StageRunner) -> dict[str, Any]:
    """Fit the model, write the artifact and the report, and return the summary."""
    states = stages.run("open", partial(_open_checkpoints, job))
    needed = ["open"]
    if job.options.skip_corrupt:
        find_damaged = partial(find_damaged_chunks, job)
        job = replace(job, skipped=stages.run("check chunks", find_damaged, needed))
        needed = ["check chunks"]
    first_label = job.model.first_statistics.label
    first = stages.run(first_label, partial(_collect_first_statistics, job), needed)
    needed = [first_label]
    if pair_label := get_pair_job_label(job.model, job.dataset.n_planes):
        stages.run(pair_label, partial(_run_pair_work, job, states, first), needed)
        needed = [pair_label]
    label = job.model.statistics.label
    label = label if label != first_label else f"{label} of the pass"
    if (latest := states.latest) is not None and latest.done:
        start = PassStart(latest, None)
    else:
        start = stages.run(label, partial(_start_passes, job, states, first), needed)
        needed = [label]
    state = stages.run("fit", partial(_run_passes, job, states, start), needed)
    measure = partial(_try_measure_drift, job, state, first.n_rows, start.statistics)
    drift = stages.run("drift", measure, ["fit", *needed])
    del start, measure  # the statistics may be large, and are not needed any more
    save = partial(_save_artifact, job, state, first.n_rows, drift, stages.usage)
    summary = stages.run("write artifact", save, ["fit", "drift"])
    with warn_on_error("The links between fit and data could not be recorded by Prefect"):
        publish_fit(summary["artifact"], job.model.name, job.dataset)
    write_report = partial(_try_write_report, summary["artifact"], job.dataset)
    has_report = job.options.report
    report = stages.run("report", write_report, ["write artifact"]) if has_report else None
    if job.truth is not None:
        summary["mcs"] = mean_cosine_similarity(state.params.mixing, job.truth)
    alert = find_drift_alert(drift, job.options.drift_limit)
    omission = find_omission(drift, job.options.drift_limit)
    if omission is not None:
        log.warning("warning: %s", omission)
    if drift is not None and (message := alert or omission):
        event: DriftEvent = "latentbits.drift" if alert else "latentbits.drift-not-measured"
        with warn_on_error("The event about drift could not be sent"):
            emit_drift_event(job, drift, event, message, summary["artifact"])
    return {**summary, "report": report, "alert": alert}


def _open_checkpoints(job: FitJob) -> CheckpointStore:
    """Check that there is enough memory, and load the latest checkpoint if there is one."""
    is_option = job.options.memory is not None
    check_memory(job.minimum_memory, job.dataset.n_features, job.memory_budget, is_option)
    folder = job.run_folder.states_folder
    return CheckpointStore(folder, load_state(job.model, folder))


def find_damaged_chunks(job: FitJob) -> tuple[int, ...]:
    """Read all chunks once; record and return the keys of the damaged ones.

    A resumed fit leaves out the same chunks, even if they were repaired. Other failures, such as a
    store that does not answer, are not damage and raise an error.
    """
    record = job.run_folder.work_folder / "skipped"
    if (record / MANIFEST_NAME).exists():
        return tuple(load_packed(record).arrays["skipped"].tolist())
    read = job.dataset.make_reader(job.request.split, job.row_memory)
    readable: list[bool] = []
    with closing(job.executor.map(read.is_readable, range(job.dataset.n_chunks))) as results:
        for is_readable in results:
            readable.append(is_readable)
            job.progress("check chunks", len(readable), job.dataset.n_chunks, 0)
    damaged = tuple(key for key, is_readable in enumerate(readable) if not is_readable)
    write_packed(record, {"skipped": np.array(damaged, np.int64)}, {})
    return damaged


def describe_skipped_chunks(dataset: BinaryDataset, skipped: Sequence[int]) -> list[dict[str, int]]:
    """Describe skipped chunks for the manifest; rows are counted from 0."""
    chunks = [(key, *map(int, dataset.chunks[key, :2])) for key in skipped]
    return [{"chunk": key, "first_row": first, "n_rows": n_rows} for key, first, n_rows in chunks]


def warn_about_skipped_chunks(dataset: BinaryDataset, skipped: Sequence[int]) -> list[str]:
    """Return a warning that names the skipped chunks, if there are any."""
    if not skipped:
        return []
    chunks = [
        f"{c['chunk']} (rows {c['first_row'] + 1} to {c['first_row'] + c['n_rows']})"
        for c in describe_skipped_chunks(dataset, skipped)
    ]
    n_rows = int(dataset.chunks[list(skipped), 1].sum())
    return [
        f"{len(skipped)} of {dataset.n_chunks} chunks, {n_rows:,} rows, are damaged and left out: "
        f"{join_names(chunks, _MAX_NAMED_CHUNKS)}"
    ]


def _collect_first_statistics(job: FitJob) -> Statistics:
    model, seed = job.model, job.options.seed
    kept_sums = job.open_kept_statistics(model.first_statistics, model.first_key(seed))
    collect = partial(
        collect_first_statistics, model, job.rows, job.executor, seed, job.progress, kept_sums
    )
    return collect_or_load(model.first_statistics, job.run_folder.work_folder / "first", collect)


def _run_pair_work(job: FitJob, states: CheckpointStore, first: Statistics) -> None:
    """Do the pair work and save the state, unless an earlier try or run did."""
    if states.latest is None:
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
        initial_params=None if job.request.initial_fit is None else job.request.initial_fit.params,
        run_pairs=partial(_write_pair_results, job),
        spare_memory=spare,
        progress=job.progress,
        kept_linkage=job.open_kept_statistics(Linkage, get_linkage_key(job.model)),
        kept_results=job.kept_results,
    )


def _write_pair_results(job: FitJob, work: PairJob) -> RangeResults:
    """Run pair work and write its results to the work folder, from where they are read back."""
    results = ResumableResults(job.run_folder.work_folder / PAIRS_FOLDER)
    n_per_chunk = work.count_per_chunk(job.executor)
    size = work.choose_range_length(sum(n_per_chunk))

    def report(done: int, total: int, stop: int) -> None:
        job.progress(work.label, done, total, work.count_rows_done(stop))

    arrays = work.describe_arrays()
    make_arrays: Callable[[RowRange], Arrays] = work
    is_strips = isinstance(work, FeaturePairJob)
    if isinstance(work, FeaturePairJob):
        earlier = _find_earlier_strips(job, arrays, work.height)
        make_arrays = partial(make_square_rows, replace(work, earlier=earlier))
    sealed = write_row_ranges(make_arrays, arrays, n_per_chunk, size, results, job.executor, report)
    seal_codes(*sealed, {})
    clear_chunk_cache()  # of rows; the results need its memory
    release_free_memory()
    codes = open_codes(results.codes_folder.resolve(), "Fit again.")  # for workers elsewhere
    read = StripReader(codes, job.row_memory) if is_strips else codes.read_chunk
    return RangeResults(codes.n_chunks, read)


def _find_earlier_strips(
    job: FitJob, arrays: ArrayDescriptions, height: int
) -> EarlierStrips | None:
    """Find the strips of the latest fit in the folder of runs, if it counted rows of this fit.

    Chunks that are counted there need not be read again. Strips are checked when they are read.
    """
    if not (job.run_folder.output / LATEST_NAME).is_file():
        return None
    model: Any = job.model
    names = tuple(name for name in model.pair_counts if name in arrays)
    if not names:
        return None
    try:
        latest = load_artifact(job.run_folder.output.resolve())  # for workers elsewhere
        pairs, manifest = latest.pairs, latest.manifest
    except DataError as error:
        log.info("All rows are counted: %s", error)
        return None
    n_features, n_chunks = job.dataset.n_planes, int(manifest["dataset"]["n_chunks"])
    if manifest["model"] != model.name or pairs is None:
        reason = "did not count pairs"
    elif manifest.get("code") != job.provenance["code"]:
        reason = "ran other code"
    elif not is_of_leading_rows(manifest, job.dataset, job.request.split, job.skipped, job.weights):
        reason = "used other rows or weights"
    elif not set(names) <= set(pairs):
        reason = "had no missing values"
    elif pairs.manifest["rows_per_chunk"] != height or pairs.n_rows != n_features:
        reason = "had strips of another height"
    else:
        return EarlierStrips(n_chunks, EarlierStripReader(pairs, names))
    log.info("All rows are counted, because the latest fit, %s, %s.", latest.path, reason)
    return None


@dataclass(frozen=True)
class EarlierStripReader:
    """Reads the counts of strips that an earlier fit stored, in any process."""

    pairs: Codes
    names: tuple[str, ...]

    def __call__(self, key: int) -> dict[str, NDArray[Any]] | None:
        """Read the counts of a strip, (n_strip, n_features − first); None if they are damaged."""
        try:
            return _read_strip(self.pairs, key, self.names)
        except DataError as error:
            log.warning("warning: All rows of a strip are counted: %s", error)
            return None


def _read_strip(codes: Codes, key: int, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read arrays of a strip without the zeros before the diagonal."""
    first = key * int(codes.manifest["rows_per_chunk"])
    strips = ((name, codes.read_chunk(key, [name])[name]) for name in names)
    return {name: np.ascontiguousarray(values[:, first:]) for name, values in strips}


@dataclass(frozen=True)
class StripReader:
    """Reads strips of feature pairs without the zeros before the diagonal.

    Every process keeps up to `memory` bytes of correlations, of which each product reads all.
    """

    codes: Codes
    memory: int

    def __call__(self, key: int, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Read a strip of all or some arrays, (n_strip, n_features − first)."""
        return {
            name: self._load_strip(name, key) for name in (self.codes if names is None else names)
        }

    def _load_strip(self, name: str, key: int) -> NDArray[Any]:
        if name != "correlation":
            return self._read_strip(name, key)
        array = (str(self.codes.path), self.codes.manifest["manifest_digest"], name)
        return get_or_read_chunk(array, key, self.memory, partial(self._read_strip, name, key))

    def _read_strip(self, name: str, key: int) -> NDArray[Any]:
        return _read_strip(self.codes, key, [name])[name]


class PassStart(NamedTuple):
    """The state in which passes begin, and the statistics of that pass if already collected.

    Statistics that do not depend on parameters serve every pass.
    """

    state: FitState
    statistics: Statistics | None


def _start_passes(job: FitJob, states: CheckpointStore, first: Statistics) -> PassStart:
    """Create the initial state and collect its statistics, or continue from a checkpoint."""
    model, seed, state = job.model, job.options.seed, states.latest
    counts_key = model.counts_key(job.dataset.n_planes)
    if state is not None and (state.done or counts_key is None):
        return PassStart(state, None)
    if state is None:
        state = _make_initial_state(job, first)
    kept_sums = job.open_kept_statistics(model.statistics, counts_key)
    collect = partial(
        collect_pass_statistics, model, state, job.rows, job.executor, seed, job.progress, kept_sums
    )
    folder = job.run_folder.work_folder / "pass"
    return PassStart(state, collect_or_load(model.statistics, folder, collect))


def _run_passes(job: FitJob, states: CheckpointStore, start: PassStart) -> FitState:
    if states.latest is not None:  # a retry continues where the previous try ended
        is_same = job.model.counts_key(job.dataset.n_planes) is not None
        start = PassStart(states.latest, start.statistics if is_same else None)
    run = (job.rows, job.executor, job.options.seed)
    state = fit_model(
        job.model,
        *run,
        state=start.state,
        statistics=start.statistics,
        checkpoint=states.save,
        progress=job.progress,
        kept_results=job.kept_results,
    )
    state = add_fit_statistics(job.model, state, *run, job.progress)
    state = add_class_numbers(job.model, state, *run, job.progress, job.kept_results)
    state = orient_fit(job.model, state, *run, job.poles, list_features(job.dataset))
    return anchor_fit(job.model, state, *run, job.anchors)


def _try_measure_drift(
    job: FitJob, state: FitState, n_samples: int, statistics: Statistics | None
) -> dict[str, Any] | None:
    with warn_on_error("Drift since the latest fit could not be measured"):
        return measure_drift(job, state, n_samples, statistics)
    return None


def _save_artifact(
    job: FitJob,
    state: FitState,
    n_samples: int,
    drift: dict[str, Any] | None,
    usage: dict[str, Any],
) -> dict[str, Any]:
    """Write the artifact, mark it as the latest, and summarize it."""
    work_folder, target = job.run_folder.work_folder, job.run_folder.make_artifact_path()
    unfinished = work_folder / "artifact"
    pairs = ResumableResults(work_folder / PAIRS_FOLDER).codes_folder
    artifact_pairs = unfinished / PAIRS_FOLDER
    if artifact_pairs.is_dir() and not pairs.is_dir():  # moved by an interrupted run
        replace_folder(artifact_pairs, pairs)
    arrays = {name: NamedArray(*a) for name, a in get_named_arrays(state.params).items()}
    manifest = {**_make_manifest(job, state, n_samples), "drift": drift, "usage_by_stage": usage}
    if has_pair_tables(job):
        manifest["pairs"] = open_codes(pairs).manifest["manifest_digest"]
    write_artifact(unfinished, arrays, manifest)
    if has_pair_tables(job):
        replace_folder(pairs, artifact_pairs)
    with keep_leases():
        replace_folder(unfinished, target)
        job.run_folder.set_latest(target)
    return {"artifact": str(target), **summarize_fit(manifest, state.params)}


def has_pair_tables(job: FitJob) -> bool:
    """Return whether the fit counts feature pairs strip by strip."""
    return get_pair_job_label(job.model, job.dataset.n_planes) == FeaturePairJob.label


def _make_manifest(job: FitJob, state: FitState, n_samples: int) -> dict[str, Any]:
    outcome = describe_outcome(job.model, job.dataset, state)
    return {
        **job.provenance,
        "skipped_chunks": describe_skipped_chunks(job.dataset, job.skipped),
        **outcome,
        "warnings": [*warn_about_skipped_chunks(job.dataset, job.skipped), *outcome["warnings"]],
        "n_samples": n_samples,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _try_write_report(artifact: str, dataset: BinaryDataset) -> str | None:
    """Write the report into the artifact, and publish it on a configured Prefect server."""
    try:
        check_installed("A report", *REPORT_PACKAGES)
    except DataError as error:
        log.info("The fit has no report. %s", error)
        return None
    with warn_on_error("The report could not be drawn"):
        from flows.report.inputs import REPORT_FILE
        from flows.report.page import build_report_from_artifact, write_report

        output = parse_path(artifact) / REPORT_FILE
        report = build_report_from_artifact(artifact, dataset=dataset)
        write_report(report, output)
        if is_server_configured():
            with warn_on_error("The report could not be published on the Prefect server"):
                from flows.report.flow import publish_report  # imports Prefect

                publish_report(report, output)
        return str(output)
    return None
