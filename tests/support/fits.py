"""Fitted models on disk, made without a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.data.datasets import dataset_rows
from flows.fitting.provenance import outcome, provenance
from pipeline.executors.serial import SerialExecutor
from pipeline.fitting.loop import fit
from pipeline.params import named_arrays
from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.dataset.dataset import BinaryDataset


def write_fit(path: Path, model: Any, dataset: BinaryDataset) -> Path:
    """What `flows.fit` would write."""
    rows = dataset_rows(dataset, columns=model.reads_columns())
    state = fit(model, rows, SerialExecutor())
    arrays = {name: NamedArray(*array) for name, array in named_arrays(state.params).items()}
    manifest = {**provenance(model, dataset, None, 0), **outcome(model, dataset, state)}
    return write_artifact(path, arrays, manifest)
