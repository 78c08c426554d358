"""What changed since the last fit: its parameters, and the rows that came after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from flows.data.datasets import digest_leading_chunks
from flows.data.fitted import LoadedModel, load_fitted_model
from flows.fitting.checkpoints import load_statistics
from flows.fitting.job import FitJob
from flows.fitting.provenance import describe_artifact
from pipeline.data.blocks import RowSource
from pipeline.data.segments import find_segment_indices, map_fitted_segments
from pipeline.evaluation.drift import (
    compare_correlations,
    compare_loadings,
    find_largest_move,
    pool_counts,
    select_appended_rows,
)
from pipeline.evaluation.evaluate import (
    EvaluatedModel,
    describe_reconstruction,
    find_likelihood_measure,
    score_rows,
)
from pipeline.executors.base import limit_blas_threads
from pipeline.models.base import Model
from pipeline.models.capabilities import CanReconstruct, HasCompositeLikelihood
from pipeline.models.state import FitState
from pipeline.params import get_named_arrays
from pipeline.passes.map_reduce import TASK_MEMORY, collect_statistics
from pipeline.statistics.counts import POOLED_KEY, PairCounts, make_tiles
from pipeline.statistics.sums import Statistics
from storage.stores.locations import LATEST_NAME

_MAX_FEATURES = 1500
_MAX_SCORED_ROWS, _MAX_SCORED_CELLS = 10_000, 1 << 22
_MAX_PARAMS_BYTES = 64 << 20
_CHANCE_METHOD = (
    "asymptotic standard errors of tetrachoric correlations, delta method, all rows together"
)


def measure_drift(
    job: FitJob, state: FitState, n_samples: int, statistics: Statistics | None
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
    before = _find_previous_fit(job)
    if before is None:
        return None
    manifest = before.artifact.manifest
    record: dict[str, Any] = {
        **describe_artifact(before),
        "created": manifest["created"],
        "rows_then": manifest["n_samples"],
        "rows_new": n_samples - manifest["n_samples"],
        "new_segments": _list_new_segments(before, job),
        "settings_changed": _list_changed_settings(before.model, job.model),
        "parameters": _compare_parameters(before.params, state.params, job.dataset.feature_names),
    }
    if record["rows_new"]:
        first = int(manifest["dataset"]["n_chunks"])
        record["correlations"] = _measure_correlation_shift(job, first, statistics)
        record["likelihood"] = _compare_likelihoods(
            job, before, state.params, first, record["rows_new"]
        )
    return record


def _find_previous_fit(job: FitJob) -> LoadedModel | None:
    """Find the latest fit, if it is of this model, of this split of leading chunks of these."""
    if job.initial_fit is None and not (job.run_folder.output / LATEST_NAME).is_file():
        return None
    before = job.initial_fit or load_fitted_model(job.run_folder.output)
    manifest, dataset = before.artifact.manifest, job.dataset
    n_chunks = int(manifest["dataset"]["n_chunks"])
    skipped = [key for key in job.skipped if key < n_chunks]
    is_of_leading_rows = (
        (manifest["model"], manifest["split"]) == (job.model.name, job.split)
        and before.feature_names == dataset.feature_names
        and n_chunks < dataset.n_chunks
        and [part["chunk"] for part in manifest.get("skipped_chunks", ())] == skipped
        and manifest["dataset"].get("chunks_digest") == digest_leading_chunks(dataset, n_chunks)
    )
    return before if is_of_leading_rows else None


def _list_new_segments(before: LoadedModel, job: FitJob) -> list[str]:
    known = set(before.artifact.manifest["segment_names"])
    return [name for name in job.dataset.segment_names if name not in known]


def _list_changed_settings(before: Model, now: Model) -> list[str]:
    then, here = asdict(before), asdict(now)  # type: ignore[call-overload]
    return [name for name in here if here[name] != then[name]]


def _compare_parameters(before: Any, now: Any, names: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if alike := compare_loadings(before, now):
        found |= {"array": alike[0], "similarity": alike[1]}
    if moved := find_largest_move(before, now):
        found["largest_move"] = {**moved._asdict(), "feature": names[moved.feature]}
    return found


def _measure_correlation_shift(
    job: FitJob, first: int, statistics: Statistics | None
) -> dict[str, Any]:
    """Compare correlations in the chunks from the first on with those in the chunks before."""
    names = job.dataset.feature_names
    if len(names) > _MAX_FEATURES:
        return {"note": f"left out: more than {_MAX_FEATURES:,} features"}
    whole, new = (
        _find_pair_counts(job, statistics),
        _count_pairs(job, select_appended_rows(job.rows, first)),
    )
    with limit_blas_threads():
        moved = compare_correlations(whole, new, job.executor.map)
    if not len(moved.z):
        return {"note": "left out: the new rows are too few for any pair of features"}
    return {
        "pairs": len(moved.z),
        "rms": moved.rmse,
        "rms_by_chance": moved.chance_rmse,
        "chance": _CHANCE_METHOD,
        "largest": moved.describe_largest(names, observed="new", implied="before"),
    }


def _find_pair_counts(job: FitJob, statistics: Statistics | None) -> PairCounts:
    """Give the pair counts of the fit if it has some; else count what new fits add to."""
    if isinstance(statistics, PairCounts):
        return pool_counts(statistics)
    if job.model.statistics is PairCounts:  # a run that went on after its pass
        return pool_counts(load_statistics(PairCounts, job.run_folder.work_folder / "pass"))
    return _count_pairs(job, job.rows, POOLED_KEY)


def _count_pairs(job: FitJob, rows: RowSource, counted: str | None = None) -> PairCounts:
    count = partial(PairCounts.from_block, pooled=True)
    cut, kept = (
        make_tiles(rows.n_features, 1, TASK_MEMORY),
        job.open_kept_statistics(PairCounts, counted),
    )
    return collect_statistics(count, rows, job.executor, PairCounts.label, cut, job.progress, kept)


def _compare_likelihoods(
    job: FitJob, before: LoadedModel, params: Any, first: int, n_new: int
) -> dict[str, Any]:
    """Score the new rows under the parameters of both fits, which go to the workers."""
    if max(map(_count_bytes, (before.params, params))) > _MAX_PARAMS_BYTES:
        return {"note": f"left out: parameters of more than {_MAX_PARAMS_BYTES >> 20} MiB"}
    most = min(_MAX_SCORED_ROWS, max(100, _MAX_SCORED_CELLS // job.dataset.n_features))
    rows = select_appended_rows(job.rows, first, min(1.0, most / n_new), job.options.seed)
    known = map_fitted_segments(params, job.dataset.segment_names)
    subjects = [
        _make_subject(job, before.model, before.params, before.segments),
        _make_subject(job, job.model, params, known),
    ]
    name, unit = _choose_measure(subjects[1], job.dataset.n_features), "nats a row"
    if name is None and not isinstance(job.model, CanReconstruct):
        return {"note": "left out: the model says nothing of how likely rows or bits are"}
    scores = [
        score_rows(s, name, rows, job.executor, job.options.seed, job.progress) for s in subjects
    ]
    if name is None:
        unit = "nats lost a bit"
        values = [describe_reconstruction(sums)["nll_per_bit"] for sums in scores]
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


def _count_bytes(params: Any) -> int:
    return sum(values.nbytes for _, values in get_named_arrays(params).values())


def _make_subject(
    job: FitJob, model: Model, params: Any, known: Mapping[str, int]
) -> EvaluatedModel:
    indices = find_segment_indices(known, job.dataset.segment_names if known else ())
    return EvaluatedModel(model, params, indices)


def _choose_measure(subject: EvaluatedModel, n_features: int) -> str | None:
    """Take a likelihood of pairs where there is one: the other takes long for a single row."""
    if isinstance(subject.model, HasCompositeLikelihood):
        return "composite_log_likelihood"
    return find_likelihood_measure(subject, n_features).name
