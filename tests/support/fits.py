"""Fitted models on disk, made without a flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.cli.hyperparameters import parse_model_options
from pipeline.data.datasets import make_row_source
from pipeline.evaluation.records import describe_outcome, describe_provenance
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.base import Model
from pipeline.models.registry import make_model
from pipeline.params import get_named_arrays
from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.dataset.dataset import BinaryDataset


def mark_models(names: Iterable[str], by_default: str, in_matrix: str) -> list[Any]:
    """Return parameters for a test of models: few run by default, and some in the matrix."""
    marks = dict.fromkeys(in_matrix.split(), pytest.mark.matrix)
    return [
        pytest.param(name, marks=marks.get(name, pytest.mark.slow))
        if name not in by_default.split()
        else name
        for name in names
    ]


def build_model(name: str, components: int | str | None, settings: Sequence[str]) -> Model:
    """The model of `--model`, `--components` and `--set`."""
    return make_model(name, **parse_model_options(name, components, settings))


def write_fit(path: Path, model: Any, dataset: BinaryDataset) -> Path:
    """What `flows.fit` would write."""
    rows = make_row_source(dataset, columns=model.list_required_columns())
    state = fit_model(model, rows, SerialExecutor())
    arrays = {name: NamedArray(*array) for name, array in get_named_arrays(state.params).items()}
    manifest = {
        **describe_provenance(model, dataset, None, 0),
        **describe_outcome(model, dataset, state),
    }
    return write_artifact(path, arrays, manifest)
