"""Drift since the latest fit: changes in its parameters and in the rows appended since."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np

from flows.cli.summary import join_names
from flows.data.datasets import LoadedModel, load_fitted_model
from flows.fitting.checkpoints import load_statistics
from flows.fitting.job import FitJob
from flows.fitting.provenance import describe_artifact, find_row_difference, has_leading_rows
from flows.running.environment import is_server_configured
from pipeline.data.blocks import RowSource
from pipeline.data.features import HasFeatures, list_features, list_plane_names
from pipeline.data.matching import map_fitted_segments
from pipeline.errors import FitError
from pipeline.evaluation.drift import (
    SharedFeatures,
    compare_correlations,
    compare_loadings,
    find_largest_move,
    find_new_constants,
    match_features,
    pool_counts,
    select_appended_rows,
    select_features,
)
from pipeline.evaluation.evaluate import (
    EvaluatedModel,
    describe_reconstruction,
    find_likelihood_measure,
    match_segments,
    score_models,
)
from pipeline.executors.base import limit_blas_threads
from pipeline.fitting.fit_pass import estimate_counting
from pipeline.fitting.pair_work import get_pair_job_label
from pipeline.models.base import Model
from pipeline.models.capabilities import CanReconstruct, HasCompositeLikelihood
from pipeline.models.settings import get_settings
from pipeline.models.state import FitState
from pipeline.params import get_named_arrays
from pipeline.passes.map_reduce import TASK_MEMORY, collect_statistics
from pipeline.statistics.counts import POOLED_KEY, PairCounts, make_tiles
from pipeline.statistics.sums import Statistics
from storage.stores.locations import LATEST_NAME

DriftEvent = Literal["latentbits.drift", "latentbits.drift-not-measured"]
_MAX_FEATURES = 1500
_MAX_SCORED_ROWS, _MAX_SCORED_CELLS = 10_000, 1 << 22
_MAX_PARAMS_BYTES = 64 << 20
_CHANCE_METHOD = (
    "asymptotic standard errors of tetrachoric correlations, delta method, all rows together"
)


def measure_drift(
    job: FitJob, state: FitState, n_samples: int, statistics: Statistics | None
) -> dict[str, Any] | None:
    """Compare a fit with the latest one of the same model, if rows were appended since.

    Parameters and correlations of features that both fits have are compared.

    `statistics` are those of the first pass, if they are in memory. Returns the drift as the
    artifact records it: None if there is no earlier fit or the rows are the same, and a note if the
    fits cannot be compared.
    """
    before = _load_latest_fit(job)
    if before is None:
        return None
    manifest, features = before.artifact.manifest, list_features(job.dataset)
    shared = match_features(before.features, features)
    if reason := _explain_omission(before, job, shared):
        return {"note": f"not measured: the latest fit, {before.artifact.path}, {reason}"}
    record: dict[str, Any] = {
        **describe_artifact(before),
        "created": manifest["created"],
        "rows_then": manifest["n_samples"],
        "rows_new": n_samples - manifest["n_samples"],
        "new_features": shared.new_names,
        "absent_features": shared.absent_names,
        "new_segments": _list_new_segments(before, job),
        "settings_changed": _list_changed_settings(before.model, job.model),
        "parameters": _compare_parameters(before.params, state.params, job.dataset, shared),
    }
    if record["rows_new"]:
        first = int(manifest["dataset"]["n_chunks"])
        record["correlations"] = _measure_correlation_shift(job, first, statistics, shared)
        if before.features == features:
            record["likelihood"] = _compare_likelihoods(
                job, before, state.params, first, record["rows_new"]
            )
        else:
            record["likelihood"] = {"note": "left out: the features differ"}
    return record


def check_drift_limit(limit: float | None, n_features: int) -> None:
    """Raise `FitError` if a drift limit cannot be used."""
    if limit is None:
        return
    if not 0 <= limit < 2:
        raise FitError(f"{{drift_limit}} is {limit}. Choose a change of correlations such as 0.05.")
    if n_features > _MAX_FEATURES:
        raise FitError(
            f"{{drift_limit}} needs correlations, which are compared for up to {_MAX_FEATURES:,} "
            f"features, but there are {n_features:,}. Leave it out."
        )


def find_drift_alert(drift: dict[str, Any] | None, limit: float | None) -> str | None:
    """Return a message if correlations of the appended rows moved by more than the limit.

    A feature that became constant has no correlations any more, which is beyond any limit.
    """
    shift = (drift or {}).get("correlations")
    if limit is None or shift is None:
        return None
    if constant := shift.get("became_constant"):
        return (
            f"Drift: features that became constant in the new rows: {join_names(constant)}. Their "
            f"correlations cannot be compared with the limit, {limit:g}."
        )
    if "note" in shift:
        return None
    excess = shift["rms"] - shift["rms_by_chance"]
    if excess <= limit:
        return None
    return (
        f"Drift: correlations of the new rows moved by {excess:.3g} beyond chance; the limit is "
        f"{limit:g}."
    )


def find_omission(drift: dict[str, Any] | None, limit: float | None) -> str | None:
    """Return a message if there was an earlier fit, but nothing to compare with the limit."""
    if limit is None or drift is None:
        return None
    if note := drift.get("note"):
        return f"Drift {note}."
    shift = drift.get("correlations", {})
    if "note" not in shift or "became_constant" in shift:
        return None
    return f"Drift is not compared with the limit: {shift['note']}."


def emit_drift_event(
    job: FitJob, drift: dict[str, Any], event: DriftEvent, message: str, artifact: str
) -> None:
    """Emit an event about drift, if a Prefect server is configured."""
    if not is_server_configured():
        return
    from prefect.events import emit_event  # Prefect is slow to import

    dataset, model = job.dataset.path.stem, job.model.name
    resource = {
        "prefect.resource.id": f"latentbits.fit.{dataset}.{model}",
        "prefect.resource.name": f"{dataset} {model}",
    }
    payload = {"message": message, "artifact": artifact, "drift": drift}
    emit_event(event, resource, payload=payload)


def _load_latest_fit(job: FitJob) -> LoadedModel | None:
    """Load the latest fit, if there is one and it is not of the same rows."""
    if job.request.initial_fit is None and not (job.run_folder.output / LATEST_NAME).is_file():
        return None
    before = job.request.initial_fit or load_fitted_model(job.run_folder.output)
    recorded = before.artifact.manifest["dataset"]
    is_same = recorded["n_chunks"] == job.dataset.n_chunks and has_leading_rows(
        recorded, job.dataset
    )
    return None if is_same else before


def _explain_omission(before: LoadedModel, job: FitJob, shared: SharedFeatures) -> str | None:
    """Return why a fit cannot be compared with an earlier one; None if it can."""
    manifest = before.artifact.manifest
    if manifest["model"] != job.model.name:
        return f"is of {manifest['model']}"
    if not shared.new["feature"].size:
        return "has no feature with the same name and levels"
    difference = find_row_difference(
        manifest, job.dataset, job.request.split, job.skipped, job.weights
    )
    return difference and f"had {difference}"


def _list_new_segments(before: LoadedModel, job: FitJob) -> list[str]:
    old_names = set(before.artifact.manifest["segment_names"])
    return [name for name in job.dataset.segment_names if name not in old_names]


def _list_changed_settings(before: Model, after: Model) -> list[str]:
    old, new = get_settings(before), get_settings(after)
    return [name for name in old if new[name] != old[name]]


def _compare_parameters(
    before: Any, after: Any, dataset: HasFeatures, shared: SharedFeatures
) -> dict[str, Any]:
    comparison: dict[str, Any] = {}
    old = select_features(get_named_arrays(before), shared.old)
    new = select_features(get_named_arrays(after), shared.new)
    if similarity := compare_loadings(old, new):
        comparison |= {"array": similarity[0], "similarity": similarity[1]}
    if move := find_largest_move(old, new):
        (dim,), _ = new[move.array]
        names = list_plane_names(dataset) if dim == "plane" else dataset.feature_names
        name = names[shared.new[dim][move.feature]]
        comparison["largest_move"] = {**move._asdict(), "feature": name}
    return comparison


def _measure_correlation_shift(
    job: FitJob, first: int, statistics: Statistics | None, shared: SharedFeatures
) -> dict[str, Any]:
    """Compare the correlations of the chunks from `first` on with those of earlier chunks.

    These are the correlations of shared features.
    """
    names, continuous = list_plane_names(job.dataset), job.dataset.continuous_features
    planes = shared.new["plane"]
    if not len(planes):
        others = " that both fits have" if shared.new_names else ""
        return {"note": f"left out: all features{others} are continuous"}
    if len(names) > _MAX_FEATURES:
        return {"note": f"left out: more than {_MAX_FEATURES:,} features"}
    if job.weights is not None and job.weights.kind == "sampling":
        return {"note": "left out: the rows have sampling weights"}
    all_rows = _find_pair_counts(job, statistics)
    new_rows = _count_pairs(job, select_appended_rows(job.rows, first))
    with limit_blas_threads():
        shift = compare_correlations(all_rows, new_rows, job.executor.map, planes)
    constant = np.intersect1d(find_new_constants(all_rows, new_rows), planes).tolist()
    became_constant = {"became_constant": [names[i] for i in constant]} if constant else {}
    if not len(shift.z):
        reason = "no pair varies in the new rows" if constant else "there are too few new rows"
        return {"note": f"left out: {reason}", **became_constant}
    return {
        "pairs": len(shift.z),
        "pairs_left_out": len(planes) * (len(planes) - 1) // 2 - len(shift.z),
        **became_constant,
        "rms": shift.rmse,
        "rms_by_chance": shift.chance_rmse,
        **({"left_out": list(continuous)} if continuous else {}),
        "chance": _CHANCE_METHOD,
        "largest": shift.describe_largest(names, observed="new", implied="before"),
    }


def _find_pair_counts(job: FitJob, statistics: Statistics | None) -> PairCounts:
    """Return the pair counts of the fit, or count pairs if it has none."""
    if isinstance(statistics, PairCounts):
        return pool_counts(statistics)
    has_pass = get_pair_job_label(job.model, job.dataset.n_planes) is None
    if has_pass and job.model.statistics is PairCounts:  # a run resumed after its pass
        kept: Any = load_statistics(PairCounts, job.run_folder.work_folder / "pass")
        return pool_counts(kept)
    return _count_pairs(job, job.rows, POOLED_KEY)


def _count_pairs(job: FitJob, rows: RowSource, key: str | None = None) -> PairCounts:
    count = partial(PairCounts.from_block, pooled=True)
    tiles = make_tiles(rows.n_features, 1, TASK_MEMORY)
    kept_sums = job.open_kept_statistics(PairCounts, key)
    work = estimate_counting(job.model, rows)
    counts: PairCounts = collect_statistics(
        count, rows, job.executor, PairCounts.label, tiles, job.progress, kept_sums, work
    )
    return counts


def _compare_likelihoods(
    job: FitJob, before: LoadedModel, params: Any, first: int, n_new: int
) -> dict[str, Any]:
    """Compare the likelihood of the new rows under both fits."""
    if job.weights is not None:
        return {"note": "left out: the rows have weights"}
    if max(map(_count_bytes, (before.params, params))) > _MAX_PARAMS_BYTES:
        return {"note": f"left out: the parameters take more than {_MAX_PARAMS_BYTES >> 20} MiB"}
    n_scored = min(_MAX_SCORED_ROWS, max(100, _MAX_SCORED_CELLS // job.dataset.n_planes))
    rows = select_appended_rows(job.rows, first, min(1.0, n_scored / n_new), job.options.seed)
    names = job.dataset.segment_names
    old = match_segments(before.model, before.params, before.segments, names)
    new = match_segments(job.model, params, map_fitted_segments(params, names), names)
    name, unit = _choose_measure(new, job.dataset.n_planes), "nats per row"
    if name is None and not isinstance(job.model, CanReconstruct):
        return {"note": "left out: the model has no likelihood of rows or bits"}
    subjects = {"last fit": (old, name), "this fit": (new, name)}
    by_fit = score_models(subjects, rows, job.executor, job.options.seed, job.progress).models
    scores = [*by_fit.values()]
    if name is None:
        unit = "nats lost per bit"
        values = [describe_reconstruction(sums)["nll_per_bit"] for sums in scores]
    else:
        values = [sums.objective / sums.n_rows for sums in scores]
    return {
        "measure": name or "nll_per_bit",
        "unit": unit,
        "rows": scores[0].n_rows,
        "before": values[0],
        "now": values[1],
        "difference": values[1] - values[0],
    }


def _count_bytes(params: Any) -> int:
    return sum(values.nbytes for _, values in get_named_arrays(params).values())


def _choose_measure(subject: EvaluatedModel, n_features: int) -> str | None:
    """Choose the likelihood of pairs if there is one, as it is much faster per row."""
    if isinstance(subject.model, HasCompositeLikelihood):
        return "composite_log_likelihood"
    return find_likelihood_measure(subject, n_features).name
