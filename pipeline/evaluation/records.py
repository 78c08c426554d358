"""Describe the origin and the end of a fit, as manifests record them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.data.datasets import Dataset
from pipeline.data.weights import RowWeights
from pipeline.errors import keep_placeholder
from pipeline.evaluation.prediction import name_categories
from pipeline.executors.code_digest import digest_modules, list_versions
from pipeline.learning.convergence import find_ending
from pipeline.models.base import Model
from pipeline.models.settings import get_settings
from pipeline.models.state import FitState


def describe_provenance(
    model: Model,
    dataset: Dataset,
    split: str | None,
    seed: int,
    module: str = "pipeline.fitting.loop",
    warm_start: Mapping[str, str] | None = None,
    weights: RowWeights | None = None,
    group: str | None = None,
) -> dict[str, Any]:
    """Describe everything that determines a result.

    `module` does the work with the model and the rows; `warm_start` identifies the artifact of the
    fit it starts from. Rows may have `weights`, and their segments may be the values of the column
    `group`.
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
        "segment_names": dataset.segment_names,
        "warm_start": warm_start,
        **({} if weights is None else {"row_weights": weights.describe()}),
        **({} if group is None else {"group": group}),
    }


def describe_outcome(model: Model, dataset: Dataset, state: FitState) -> dict[str, Any]:
    """Describe the end of a fit: convergence, objective, diagnostics and warnings."""
    names = (dataset.feature_names, dataset.segment_names)
    ending = find_ending(model.get_convergence_criterion(state), state.history)
    labels = name_categories(model, state.params, dataset)
    return {
        "iterations": state.iteration,
        "converged": ending.converged,
        "history": state.history,
        "objective": ending.objective,
        "diagnostics": state.diagnostics,
        "warnings": [warning.render(*names, spell=keep_placeholder) for warning in state.warnings],
        "n_components": int(state.diagnostics["n_components"]),
        **({"labels": labels} if labels else {}),
    }
