"""Datasets for tests: the shared real ones, and generated ones written as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.data.blocks import RowSource
from storage.dataset.dataset import BinaryDataset, ChunkReader, open_dataset
from storage.dataset.writer import create_dataset

SHARED = Path(__file__).parents[3] / "shared" / "data"


def find_shared_data(name: str) -> Path:
    """Path of a shared data set; skips the test where it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"{name} is not there: the shared data sets lie beside the project")
    return path


def find_reference(name: str) -> Path:
    """Path of a file with values from R; skips the test where it is absent."""
    return find_shared_data(f"../reference/{name}")


@dataclass
class ArrayBatch:
    X: np.ndarray
    observed: np.ndarray | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    numbers: np.ndarray | None = None


def draw_probit_rows(
    n_rows: int, n_features: int, n_factors: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Low-rank probit rows and the loadings behind them, unit variance each."""
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal((n_features, n_factors))
    loadings *= np.sqrt(0.6) / np.linalg.norm(loadings, axis=1, keepdims=True)
    x = rng.standard_normal((n_rows, n_factors)) @ loadings.T
    x += np.sqrt(0.4) * rng.standard_normal(x.shape)
    return (x > rng.uniform(-1, 1, n_features)).astype(np.uint8), loadings


def write_arrays(
    path: Path,
    X: np.ndarray,
    observed: np.ndarray | None = None,
    segments: Sequence[str] | None = None,
    words_per_chunk: int | None = None,
    columns: dict[str, Any] | None = None,
    names: Sequence[str] | None = None,
    feature_levels: Mapping[str, Sequence[str]] | None = None,
    numbers: np.ndarray | None = None,
) -> BinaryDataset:
    columns = columns or {}
    names = names or [f"f{i}" for i in range(X.shape[1])]
    with create_dataset(
        path,
        names,
        feature_levels=feature_levels,
        columns=list(columns),
        words_per_chunk=words_per_chunk,
    ) as writer:
        labels = None if segments is None else np.asarray(segments)
        writer.add(ArrayBatch(X, observed, columns, numbers), labels)
    return open_dataset(path)


def make_test_row_source(dataset: BinaryDataset, split: str | None = None) -> RowSource:
    read = ChunkReader(str(dataset.path), dataset.digest, split)
    return RowSource(read, dataset.rows_per_chunk, dataset.n_features, dataset.n_segments)
