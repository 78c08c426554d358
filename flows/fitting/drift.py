"""What changed since the last fit: its parameters, and the rows that came after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from flows.data.datasets import leading_digest
from flows.data.fitted import Fitted, load_fitted
from flows.fitting.checkpoints import load_statistics
from flows.fitting.job import Job
from flows.fitting.provenance import artifact_named
from pipeline.data.blocks import Rows
from pipeline.data.segments import known_segments, segment_indices
from pipeline.evaluation.drift import (
    compare_correlations,
    largest_move,
    later_rows,
    pooled,
    similarity,
)
from pipeline.evaluation.evaluate import Subject, measure_of, reconstruction_summary, score_rows
from pipeline.executors.base import one_blas_thread
from pipeline.models.base import Model
from pipeline.models.capabilities import CompositeLikely, Reconstructs
from pipeline.models.state import FitState
from pipeline.params import named_arrays
from pipeline.passes.collect import TASK_MEMORY, collect
from pipeline.statistics.base import Statistics
from pipeline.statistics.counts import POOLED, PairCounts, tiles
from storage.stores.locations import LATEST

_MOST_FEATURES = 1500
_SCORED_ROWS, _SCORED_CELLS = 10_000, 1 << 22
_MOST_BYTES = 64 << 20
_CHANCE = "asymptotic standard errors of tetrachoric correlations, delta method, all rows together"


def drift_since(
    job: Job, state: FitState, n_samples: int, statistics: Statistics | None
) -> dict[str, Any] | None:
    """Compare with the latest fit of the same model to the same rows without the newest.

    Parameters
    ----------
    job
        The fit.
    state
        What it ended with.
    n_samples
        Number of its rows.
    statistics
        Of its first pass, where they are in memory.

    Returns
    -------
    dict or None
        What an artifact records; None where there is no such fit.
    """
    before = _fit_before(job)
    if before is None:
        return None
    manifest = before.artifact.manifest
    record: dict[str, Any] = {
        **artifact_named(before),
        "created": manifest["created"],
        "rows_then": manifest["n_samples"],
        "rows_new": n_samples - manifest["n_samples"],
        "new_segments": _new_segments(before, job),
        "settings_changed": _settings_changed(before.model, job.model),
        "parameters": _parameters(before.params, state.params, job.dataset.feature_names),
    }
    if record["rows_new"]:
        first = int(manifest["dataset"]["n_chunks"])
        record["correlations"] = _correlations(job, first, statistics)
        record["likelihood"] = _likelihood(job, before, state.params, first, record["rows_new"])
    return record


def _fit_before(job: Job) -> Fitted | None:
    """Find the latest fit, if it is of this model, of this split of leading chunks of these."""
    if job.start is None and not (job.run.output / LATEST).is_file():
        return None
    before = job.start or load_fitted(job.run.output)
    manifest, dataset = before.artifact.manifest, job.dataset
    n_chunks = int(manifest["dataset"]["n_chunks"])
    skipped = [key for key in job.skipped if key < n_chunks]
    is_of_leading_rows = (
        (manifest["model"], manifest["split"]) == (job.model.name, job.split)
        and before.feature_names == dataset.feature_names
        and n_chunks < dataset.n_chunks
        and [part["chunk"] for part in manifest.get("skipped_chunks", ())] == skipped
        and manifest["dataset"].get("chunks_digest") == leading_digest(dataset, n_chunks)
    )
    return before if is_of_leading_rows else None


def _new_segments(before: Fitted, job: Job) -> list[str]:
    known = set(before.artifact.manifest["segment_names"])
    return [name for name in job.dataset.segment_names if name not in known]


def _settings_changed(before: Model, now: Model) -> list[str]:
    then, here = asdict(before), asdict(now)  # type: ignore[call-overload]
    return [name for name in here if here[name] != then[name]]


def _parameters(before: Any, now: Any, names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if alike := similarity(before, now):
        found |= {"array": alike[0], "similarity": alike[1]}
    if moved := largest_move(before, now):
        found["largest_move"] = {**moved._asdict(), "feature": names[moved.feature]}
    return found


def _correlations(job: Job, first: int, statistics: Statistics | None) -> dict[str, Any]:
    """Compare correlations in the chunks from the first on with those in the chunks before."""
    names = job.dataset.feature_names
    if len(names) > _MOST_FEATURES:
        return {"note": f"left out: more than {_MOST_FEATURES:,} features"}
    whole, new = _whole_counts(job, statistics), _pair_counts(job, later_rows(job.rows, first))
    with one_blas_thread():
        moved = compare_correlations(whole, new, job.executor.map)
    if not len(moved.z):
        return {"note": "left out: the new rows are too few for any pair of features"}
    return {
        "pairs": len(moved.z),
        "rms": moved.rmse,
        "rms_by_chance": moved.rmse_by_chance,
        "chance": _CHANCE,
        "largest": moved.largest_by_name(names, observed="new", implied="before"),
    }


def _whole_counts(job: Job, statistics: Statistics | None) -> PairCounts:
    """Give the pair counts of the fit if it has some; else count what new fits add to."""
    if isinstance(statistics, PairCounts):
        return pooled(statistics)
    if job.model.statistics is PairCounts:  # a run that went on after its pass
        return pooled(load_statistics(PairCounts, job.run.work / "pass"))
    return _pair_counts(job, job.rows, POOLED)


def _pair_counts(job: Job, rows: Rows, counted: str | None = None) -> PairCounts:
    count = partial(PairCounts.of_block, pooled=True)
    cut, kept = tiles(rows.n_features, 1, TASK_MEMORY), job.kept(PairCounts, counted)
    return collect(count, rows, job.executor, PairCounts.label, cut, job.progress, kept)


def _likelihood(job: Job, before: Fitted, params: Any, first: int, n_new: int) -> dict[str, Any]:
    """Score the new rows under the parameters of both fits, which go to the workers."""
    if max(map(_size, (before.params, params))) > _MOST_BYTES:
        return {"note": f"left out: parameters of more than {_MOST_BYTES >> 20} MiB"}
    most = min(_SCORED_ROWS, max(100, _SCORED_CELLS // job.dataset.n_features))
    rows = later_rows(job.rows, first, min(1.0, most / n_new), job.options.seed)
    known = known_segments(params, job.dataset.segment_names)
    subjects = [
        _subject(job, before.model, before.params, before.segments),
        _subject(job, job.model, params, known),
    ]
    name, unit = _measure(subjects[1], job.dataset.n_features), "nats a row"
    if name is None and not isinstance(job.model, Reconstructs):
        return {"note": "left out: the model says nothing of how likely rows or bits are"}
    scores = [
        score_rows(s, name, rows, job.executor, job.options.seed, job.progress) for s in subjects
    ]
    if name is None:
        unit = "nats lost a bit"
        values = [reconstruction_summary(sums)["nll_per_bit"] for sums in scores]
    else:
        values = [sums.objective / sums.n_samples for sums in scores]
    return {
        "measure": name or "nll_per_bit",
        "unit": unit,
        "rows": scores[0].n_samples,
        "before": values[0],
        "now": values[1],
        "difference": values[1] - values[0],
    }


def _size(params: Any) -> int:
    return sum(values.nbytes for _, values in named_arrays(params).values())


def _subject(job: Job, model: Model, params: Any, known: Mapping[str, int]) -> Subject:
    indices = segment_indices(known, job.dataset.segment_names if known else ())
    return Subject(model, params, indices)


def _measure(subject: Subject, n_features: int) -> str | None:
    """Take a likelihood of pairs where there is one: the other takes long for a single row."""
    if isinstance(subject.model, CompositeLikely):
        return "composite_log_likelihood"
    return measure_of(subject, n_features).name
