"""Fitted models on disk, made without a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.fitting.provenance import outcome, provenance
from pipeline.executors.serial import SerialExecutor
from pipeline.fit import fit
from pipeline.params import named_arrays
from storage.artifacts import NamedArray, write_artifact
from storage.dataset import BinaryDataset
from tests.data import rows_of


def write_fit(path: Path, model: Any, dataset: BinaryDataset) -> Path:
    """What `flows.fit` would write."""
    state = fit(model, rows_of(dataset), SerialExecutor())
    arrays = {name: NamedArray(*array) for name, array in named_arrays(state.params).items()}
    manifest = {**provenance(model, dataset, None, 0), **outcome(model, dataset, state)}
    return write_artifact(path, arrays, manifest)
