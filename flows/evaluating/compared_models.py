"""The fitted models to compare, and likelihood-ratio tests between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from flows.data.datasets import (
    LoadedModel,
    adapt_to_fit,
    check_dataset_features,
    check_dataset_levels,
    load_fitted_model,
    may_open,
)
from flows.fitting.provenance import TrainingRows, find_training_rows
from pipeline.data.features import list_features_to_reconstruct
from pipeline.data.matching import describe_unknown_segments
from pipeline.data.plane_views import view_as_fitted
from pipeline.data.row_columns import RowColumns
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import EvaluatedModel, match_segments
from pipeline.evaluation.model_comparison import (
    compute_likelihood_ratio,
    count_parameters,
    explain_no_test,
)
from pipeline.evaluation.prediction import TargetLabels, find_target_labels
from pipeline.models.capabilities import CanPredict, FitRecord
from pipeline.statistics.labels import SEGMENT
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import parse_path


@dataclass(frozen=True)
class ComparedModel:
    """A fitted model to evaluate; a baseline has no artifact.

    Attributes
    ----------
    subject
        The model with its parameters.
    training_rows, seed
        The rows that it was fitted to, if they still exist, and the seed of its fit.
    segments
        Index of each segment that has its own parameters, by name.
    warnings
        Warnings about using it on the dataset.
    """

    name: str
    artifact: str | None
    subject: EvaluatedModel
    n_components: int
    training_rows: TrainingRows | None
    seed: int = 0
    segments: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    manifest: Mapping[str, Any] = field(default_factory=dict)


def load_compared_models(
    paths: Sequence[str], dataset: BinaryDataset
) -> tuple[list[ComparedModel], BinaryDataset]:
    """Load artifacts, and check that they can be used on a dataset.

    Returns the models, and the dataset with the groups of the fits as segments, if they have any.
    """
    fits = {path: load_fitted_model(parse_path(path)) for path in paths}
    for path, fitted in fits.items():
        check_dataset_levels(dataset, fitted.artifact.manifest, path)
    dataset = view_as_fitted(dataset, next(iter(fits.values())).dataset_features)
    check_dataset_features(next(iter(fits.values())), dataset)
    for fitted in [*fits.values()][1:]:
        check_dataset_features(fitted, dataset, "Evaluate fits to other features one at a time.")
    if (grouped := _find_fit_with_groups(fits)) is not None:
        path, fitted = grouped
        dataset = adapt_to_fit(dataset, fitted.artifact.manifest, path)
    if (regressed := _find_fit_with_row_columns(fits)) is not None:
        path, fitted = regressed
        row_columns = adapt_to_fit(dataset, fitted.artifact.manifest, path).row_columns
        dataset = dataset.with_row_columns(row_columns)
    models = [_make_compared_model(path, fits[path], dataset) for path in paths]
    if grouped is not None:
        models = [_regroup_training_rows(model, grouped[1]) for model in models]
    if regressed is not None:
        models = [_add_row_columns(model, regressed[1]) for model in models]
    return models, dataset


def _regroup_training_rows(model: ComparedModel, grouped: LoadedModel) -> ComparedModel:
    """Group the rows that a model was fitted to as those of a fit, if they have its column."""
    training, column = model.training_rows, grouped.artifact.manifest["group"]
    if training is None or column not in training.dataset.column_names:
        return model
    regrouped = replace(training, dataset=training.dataset.segment_by(column))
    return replace(model, training_rows=regrouped)


def _add_row_columns(model: ComparedModel, regressed: LoadedModel) -> ComparedModel:
    """Read the columns of a fit with the rows that a model was fitted to, if they have them."""
    training, row_columns = model.training_rows, RowColumns.read(regressed.artifact.manifest)
    if training is None or not {*row_columns.roles} <= {*training.dataset.column_names}:
        return model
    dataset = training.dataset.with_row_columns(row_columns)
    return replace(model, training_rows=replace(training, dataset=dataset))


def _find_fit_with_groups(fits: Mapping[str, LoadedModel]) -> tuple[str, LoadedModel] | None:
    """Find a fit with groups; refuse other fits that need other segments."""
    by_column = {
        fitted.artifact.manifest.get("group"): (path, fitted)
        for path, fitted in fits.items()
        if _needs_segments(fitted)
    }
    if len(by_column) > 1:
        texts = [
            f"{path} has {'segments' if column is None else f'groups by {column}'}"
            for column, (path, _) in by_column.items()
        ]
        raise FitError(f"{' and '.join(texts)}. Evaluate them one by one.")
    return next((fit for column, fit in by_column.items() if column is not None), None)


def _find_fit_with_row_columns(fits: Mapping[str, LoadedModel]) -> tuple[str, LoadedModel] | None:
    """Find a fit that uses per-row columns; refuse others that use other ones."""
    columns = {path: RowColumns.read(fitted.artifact.manifest) for path, fitted in fits.items()}
    users = [path for path, own in columns.items() if own.roles]
    if not users:
        return None
    first, *others = users
    for path in others:
        if not columns[first].have_same_columns(columns[path]):
            roles = " or ".join(sorted({*columns[first].roles.values()}))
            raise FitError(f"{first} and {path} have different {roles}. Evaluate them one by one.")
    return first, fits[first]


def _needs_segments(fitted: LoadedModel) -> bool:
    """Return whether the segments of rows matter to a fit."""
    predicts_segments = isinstance(fitted.model, CanPredict) and fitted.model.column == SEGMENT
    return bool(fitted.segments) or predicts_segments or "group" in fitted.artifact.manifest


def _make_compared_model(path: str, fitted: LoadedModel, dataset: BinaryDataset) -> ComparedModel:
    segments, names, manifest = fitted.segments, dataset.segment_names, fitted.artifact.manifest
    labels = _find_labels(fitted, dataset)
    warnings, fitted_path = describe_unknown_segments(segments, names), manifest["dataset"]["path"]
    if not may_open(fitted_path, fitted.artifact.path, dataset.path):
        warnings.append(
            f"the fitted rows are not read from {fitted_path}, which is neither in the bucket of "
            "the artifact nor in that of the dataset"
        )
    return ComparedModel(
        path,
        str(fitted.artifact.path.resolve()),
        match_segments(
            fitted.model,
            fitted.params,
            segments,
            names,
            labels,
            list_features_to_reconstruct(dataset),
        ),
        manifest["n_components"],
        find_training_rows(fitted.artifact, dataset),
        manifest["seed"],
        segments,
        tuple(warnings),
        manifest,
    )


def _find_labels(fitted: LoadedModel, dataset: BinaryDataset) -> TargetLabels | None:
    if not isinstance(fitted.model, CanPredict):
        return None
    dataset.check_columns(fitted.model.list_required_columns())
    names = fitted.artifact.manifest.get("labels", ())
    return find_target_labels(fitted.model, fitted.params, names, dataset)


def run_likelihood_ratio_tests(models: Sequence[ComparedModel]) -> list[dict[str, Any]]:
    """Test each fit against the next larger one.

    Raises `FitError` if there is no test of two fits; see `explain_no_test`.
    """
    if len(models) < 2:
        raise FitError("{likelihood_ratio} needs two or more artifacts. Repeat {artifact}.")
    fits = [
        (own.name, FitRecord(own.subject.model, own.subject.params, own.manifest)) for own in models
    ]
    ordered = sorted(fits, key=lambda fit: count_parameters(fit[1]))
    return [_run_test(*small, *large) for small, large in pairwise(ordered)]


def _run_test(
    small_name: str, small: FitRecord, large_name: str, large: FitRecord
) -> dict[str, Any]:
    if reason := explain_no_test(small, large):
        raise FitError(
            f"{small_name}, {large_name}: there is no likelihood-ratio test ({reason}). Leave out "
            "{likelihood_ratio}, or name other fits."
        )
    test = compute_likelihood_ratio(small, large)
    return {"smaller": small_name, "larger": large_name, **test}
