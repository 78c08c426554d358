"""Fitted models on disk, made without a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.data.datasets import make_row_source
from pipeline.evaluation.records import describe_outcome, describe_provenance
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.params import get_named_arrays
from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.dataset.dataset import BinaryDataset


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
