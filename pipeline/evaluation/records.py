"""Describe the origin and the end of a fit, as manifests record them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pipeline.data.datasets import Dataset, get_row_columns
from pipeline.data.features import list_plane_names
from pipeline.errors import keep_placeholder
from pipeline.evaluation.prediction import name_categories
from pipeline.executors.code_digest import digest_modules, list_versions
from pipeline.learning.convergence import find_final_objective
from pipeline.models.base import Model
from pipeline.models.capabilities import FindsSegments
from pipeline.models.settings import get_settings
from pipeline.models.state import FitState


def describe_provenance(
    model: Model,
    dataset: Dataset,
    split: str | None,
    seed: int,
    module: str = "pipeline.fitting.loop",
    warm_start: Mapping[str, str] | None = None,
    choices: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Describe everything that determines a result.

    `module` does the work with the model and the rows; `warm_start` identifies the artifact of the
    fit it starts from. The dataset has the columns of rows that it uses. `choices` are those of
    `pipeline.fitting.prepare.PreparedFit`.
    """
    return {
        "model": model.name,
        "hyperparameters": get_settings(model),
        "seed": seed,
        "split": split,
        "versions": list_versions(),
        "code": digest_modules(type(model).__module__, module),
        "dataset": dataset.describe(),
        "feature_names": dataset.feature_names,
        **({"feature_levels": dict(levels)} if (levels := dataset.feature_levels) else {}),
        **({"nominal_features": sorted(own)} if (own := dataset.nominal_features) else {}),
        "segment_names": dataset.segment_names,
        "warm_start": warm_start,
        **get_row_columns(dataset).describe(),
        **choices,
    }


def describe_outcome(model: Model, dataset: Dataset, state: FitState) -> dict[str, Any]:
    """Describe the end of a fit: convergence, objective, diagnostics and warnings."""
    segment_names = dataset.segment_names
    if isinstance(model, FindsSegments):
        segment_names = model.name_segments(state.params)
    names = (list_plane_names(dataset), segment_names)
    convergence, history = model.get_convergence_criterion(state), state.history
    labels = name_categories(model, state.params, dataset)
    return {
        "iterations": state.iteration,
        "converged": state.converged,
        "history": history,
        "objective": find_final_objective(convergence, history) if history else None,
        "diagnostics": state.diagnostics,
        "segment_names": segment_names,
        "warnings": [warning.render(*names, spell=keep_placeholder) for warning in state.warnings],
        "n_components": int(state.diagnostics["n_components"]),
        **({"labels": labels} if labels else {}),
    }
