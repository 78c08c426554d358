"""The fitted models to compare, and likelihood-ratio tests between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

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
from pipeline.evaluation.prediction import TargetLabels, find_target_labels
from pipeline.models.capabilities import CanPredict
from pipeline.models.known_items import find_known_values
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
    for fitted in fits.values():
        check_dataset_features(fitted, dataset)
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


_SHOWN_SETTINGS = (
    *("estimator", "equal_slopes", "prior_precision", "constant_features"),
    *("guessing", "slipping", "slope_prior", "offset_prior"),
)
_DEFAULT_VALUES = (None, "auto", "no", 0.0, "refuse", "none")
_MAX_DECREASE = 0.01  # nats by which the larger model may lie below the smaller one


def run_likelihood_ratio_tests(models: Sequence[ComparedModel]) -> list[dict[str, Any]]:
    """Test each fit against the next larger one.

    Raises `FitError` if a fit has no maximised likelihood, or two are of different rows or not
    nested.
    """
    if len(models) < 2:
        raise FitError("{likelihood_ratio} needs two or more artifacts. Repeat {artifact}.")
    for model in models:
        is_trait = model.manifest["model"] == "latent-trait"
        if not is_trait or "fit_statistics" not in model.manifest["diagnostics"]:
            raise FitError(
                f"{model.name} is {_format_model(model)}, but only latent-trait fits by quadrature "
                "maximise the likelihood. Leave out {likelihood_ratio}."
            )
        weights = model.manifest.get("row_weights")
        if weights is not None and weights["kind"] == "sampling":
            raise FitError(
                f"{model.name} has sampling weights, with which likelihood-ratio tests are not "
                "valid. Leave out {likelihood_ratio}."
            )
    ordered = sorted(models, key=lambda model: _get_fit_statistics(model)["n_parameters"])
    return [_run_test(small, large) for small, large in pairwise(ordered)]


def _run_test(small: ComparedModel, large: ComparedModel) -> dict[str, Any]:
    _check_rows(small, large)
    df = _get_fit_statistics(large)["n_parameters"] - _get_fit_statistics(small)["n_parameters"]
    if df < 1 or not _is_nested(small, large):
        raise FitError(
            f"{small.name}, {large.name}: {_format_model(small)} and {_format_model(large)} are "
            "not nested. Compare their BIC, or held-out rows."
        )
    gain = (
        _get_fit_statistics(large)["log_likelihood"] - _get_fit_statistics(small)["log_likelihood"]
    )
    if gain < -_MAX_DECREASE:
        raise FitError(
            f"{large.name}: the likelihood is {-gain:.2f} nats lower than of its special case "
            f"{small.name}, so the fit is not at its maximum. Fit it again with another {{seed}}."
        )
    chi2 = max(2 * gain, 0.0)
    p = float(scipy.special.chdtrc(df, chi2))
    return {"smaller": small.name, "larger": large.name, "chi2": chi2, "df": df, "p": p}


def _check_rows(small: ComparedModel, large: ComparedModel) -> None:
    def identify_rows(model: ComparedModel) -> tuple[Any, ...]:
        manifest = model.manifest
        weights = manifest.get("row_weights")
        rows = manifest["dataset"]["digest"], manifest["split"], manifest["n_samples"]
        return *rows, None if weights is None else weights["digest"]

    if identify_rows(small) != identify_rows(large):
        raise FitError(
            f"{small.name}, {large.name} were fitted to different rows (dataset, split or "
            "weights). "
            "Fit both to the same rows."
        )


def _is_nested(small: ComparedModel, large: ComparedModel) -> bool:
    a, b = small.manifest["hyperparameters"], large.manifest["hyperparameters"]
    has_same_settings = all(a[name] == b[name] for name in ("prior_precision", "constant_features"))
    is_comparable = has_same_settings and not a["prior_precision"]
    is_comparable &= _has_nested_items(small, large) and _has_nested_asymptotes(a, b)
    return is_comparable and b["equal_slopes"] == "no" and small.n_components <= large.n_components


def _has_nested_asymptotes(small: Mapping[str, Any], large: Mapping[str, Any]) -> bool:
    """Return whether the smaller fit has no asymptotes that the larger one has not, nor priors."""
    kinds = ("none", "common", "item")
    for name in ("guessing", "slipping"):
        a, b = (settings.get(name, "none") for settings in (small, large))
        if kinds.index(a) > kinds.index(b) or (b != "none" and large[f"{name}_prior"] != "none"):
            return False
    priors = [
        s.get(name, "none") for s in (small, large) for name in ("slope_prior", "offset_prior")
    ]
    return set(priors) == {"none"}


def _has_nested_items(small: ComparedModel, large: ComparedModel) -> bool:
    """Return whether the smaller fit knows all that the larger one knows about its items."""
    a, b = (find_known_values(own.subject.model, own.subject.params) for own in (small, large))
    if b is None:
        return True
    traits = [model.manifest["hyperparameters"]["traits"] for model in (small, large)]
    if a is None or a.shape != b.shape:
        return False
    is_same = np.isclose(a, b, rtol=1e-12, atol=0) | np.isnan(b)
    return bool(is_same.all()) and (traits[0] == traits[1] or traits[1] == "free")


def _get_fit_statistics(model: ComparedModel) -> Mapping[str, Any]:
    statistics: Mapping[str, Any] = model.manifest["diagnostics"]["fit_statistics"]
    return statistics


def _format_model(model: ComparedModel) -> str:
    settings = model.manifest["hyperparameters"]
    components = f"{model.n_components} component{'s' if model.n_components != 1 else ''}"
    texts = (
        f", {name}={settings[name]}"
        for name in _SHOWN_SETTINGS
        if settings.get(name) not in _DEFAULT_VALUES
    )
    return f"{model.manifest['model']} with {components}{''.join(texts)}"
