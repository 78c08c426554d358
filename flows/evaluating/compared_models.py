"""The fitted models to compare, and likelihood-ratio tests between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from flows.data.fitted import LoadedModel, check_dataset_features, load_fitted_model
from flows.fitting.provenance import TrainingRows, find_training_rows
from pipeline.data.segments import describe_unknown_segments, find_segment_indices
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.prediction import TargetLabels, find_target_labels
from pipeline.models.capabilities import CanPredict
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import parse_path

NO_SEGMENTS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class ComparedModel:
    """A fitted model to evaluate, and what to say of it.

    Attributes
    ----------
    name, artifact
        What it is called, and where it lies; None of a simple model.
    subject, n_components
        The model.
    training
        The rows that it was fitted to, where they are to be had.
    seed
        Of its fit.
    segments
        Index of each segment that has parameters of its own, by name.
    warnings
        What to say beside its numbers.
    manifest
        Of its artifact.
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


def load_compared_model(path: str, dataset: BinaryDataset) -> ComparedModel:
    """Load an artifact for a dataset: features must be its own, segments are found by name.

    Raises
    ------
    DataError, FitError
        If there is no whole artifact of a model that is known here, or the dataset has other
        features, or not the labels that it predicts.
    """
    fitted = load_fitted_model(parse_path(path))
    check_dataset_features(fitted, dataset)
    known, names = fitted.segments, dataset.segment_names
    segments = find_segment_indices(known, names) if known else NO_SEGMENTS
    return ComparedModel(
        path,
        str(fitted.artifact.path.resolve()),
        EvaluatedModel(fitted.model, fitted.params, segments, _find_labels(fitted, dataset)),
        fitted.artifact.manifest["n_components"],
        find_training_rows(fitted.artifact.manifest, dataset),
        fitted.artifact.manifest["seed"],
        known,
        tuple(describe_unknown_segments(known, names)),
        fitted.artifact.manifest,
    )


def _find_labels(fitted: LoadedModel, dataset: BinaryDataset) -> TargetLabels | None:
    """Find the labels that a model predicts; the dataset must have them."""
    if not isinstance(fitted.model, CanPredict):
        return None
    dataset.check_columns(fitted.model.list_required_columns())
    names = fitted.artifact.manifest.get("labels", ())
    return find_target_labels(fitted.model, fitted.params, names, dataset)


Manifest = Mapping[str, Any]

_SHOWN_SETTINGS = ("estimator", "equal_slopes", "prior_precision", "constant_features")
_DEFAULT_VALUES = (None, "auto", "no", 0.0, "refuse")
_MAX_DECREASE = 0.01  # nats that the larger of two fits may lie below the smaller


def run_likelihood_ratio_tests(models: Sequence[ComparedModel]) -> list[dict[str, Any]]:
    """Test each fit against the next larger one.

    Raises
    ------
    FitError
        If fits have no likelihood at a maximum, are of other rows, or are not nested.
    """
    if len(models) < 2:
        raise FitError("--likelihood-ratio: Expected two or more --artifact, got one.")
    for named in models:
        if "fit_statistics" not in named.manifest["diagnostics"]:
            raise FitError(
                f"{named.name}: Expected a latent-trait fit by quadrature, whose likelihood is at "
                f"its maximum, got {_format_model(named)}. Leave out --likelihood-ratio."
            )
    ordered = sorted(models, key=lambda named: _get_fit_statistics(named)["n_parameters"])
    return [_run_test(small, large) for small, large in pairwise(ordered)]


def _run_test(small: ComparedModel, large: ComparedModel) -> dict[str, Any]:
    _check_rows(small, large)
    df = _get_fit_statistics(large)["n_parameters"] - _get_fit_statistics(small)["n_parameters"]
    if df < 1 or not _is_nested(small, large):
        raise FitError(
            f"{small.name}, {large.name}: Expected nested models, got {_format_model(small)} and "
            f"{_format_model(large)}. Compare their BIC, or rows held out."
        )
    gain = (
        _get_fit_statistics(large)["log_likelihood"] - _get_fit_statistics(small)["log_likelihood"]
    )
    if gain < -_MAX_DECREASE:
        raise FitError(
            f"{large.name}: Expected a likelihood above that of {small.name}, which it holds, got "
            f"{-gain:.2f} nats less: it stopped short. Fit it again with another --seed."
        )
    chi2 = max(2 * gain, 0.0)
    p = float(scipy.stats.chi2.sf(chi2, df))
    return {"smaller": small.name, "larger": large.name, "chi2": chi2, "df": df, "p": p}


def _check_rows(small: ComparedModel, large: ComparedModel) -> None:
    def rows(named: ComparedModel) -> tuple[Any, ...]:
        manifest = named.manifest
        return manifest["dataset"]["digest"], manifest["split"], manifest["n_samples"]

    if rows(small) != rows(large):
        raise FitError(
            f"{small.name}, {large.name}: Expected fits to the same rows, got others "
            "(dataset, split). Fit both to the same."
        )


def _is_nested(small: ComparedModel, large: ComparedModel) -> bool:
    """Tell whether every model of the smaller kind is one of the larger."""
    a, b = small.manifest["hyperparameters"], large.manifest["hyperparameters"]
    same = ("prior_precision", "constant_features")
    is_alike = all(a[name] == b[name] for name in same) and not a["prior_precision"]
    return is_alike and b["equal_slopes"] == "no" and small.n_components <= large.n_components


def _get_fit_statistics(named: ComparedModel) -> Manifest:
    told: Manifest = named.manifest["diagnostics"]["fit_statistics"]
    return told


def _format_model(named: ComparedModel) -> str:
    settings = named.manifest["hyperparameters"]
    components = f"{named.n_components} component{'s' if named.n_components != 1 else ''}"
    told = (
        f", {name}={settings[name]}"
        for name in _SHOWN_SETTINGS
        if settings.get(name) not in _DEFAULT_VALUES
    )
    return f"{named.manifest['model']} of {components}{''.join(told)}"
