"""What an artifact records about its origin, and how to find the rows that it was fitted to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any, Literal

from flows.data.datasets import digest_leading_chunks, make_row_source
from flows.data.fitted import LoadedModel
from pipeline.data.blocks import RowSource
from pipeline.evaluation.prediction import name_categories
from pipeline.executors.code_digest import digest_modules
from pipeline.learning.convergence import find_final_objective
from pipeline.models.base import Model
from pipeline.models.state import FitState
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError

_LIBRARIES = ("latentbits", "numpy", "scipy", "numba", "scikit-learn")


def describe_provenance(
    model: Model,
    dataset: BinaryDataset,
    split: str | None,
    seed: int,
    doing: str = "pipeline.fitting.loop",
    start: LoadedModel | None = None,
) -> dict[str, Any]:
    """Describe everything that decides a result.

    Parameters
    ----------
    model, dataset, split, seed
        What is fitted, or used, and on which rows.
    doing
        The module that does it.
    start
        The fit that it began at.
    """
    return {
        "model": model.name,
        "hyperparameters": asdict(model),  # type: ignore[call-overload]
        "seed": seed,
        "split": split,
        "versions": list_versions(),
        "code": digest_modules(type(model).__module__, doing),
        "dataset": describe_dataset(dataset),
        "feature_names": dataset.feature_names,
        "segment_names": dataset.segment_names,
        "warm_start": None if start is None else describe_artifact(start),
    }


def list_versions() -> dict[str, str]:
    """Give the versions of this library and of those that it computes with."""
    return {name: version(name) for name in _LIBRARIES}


def describe_dataset(dataset: BinaryDataset) -> dict[str, Any]:
    """Name a dataset: its path, and the digests that tell its rows from any others."""
    return {
        "path": str(dataset.path.resolve()),
        "digest": dataset.digest,
        "chunks_digest": digest_leading_chunks(dataset, dataset.n_chunks),
        "n_rows": dataset.n_rows,
        "n_chunks": dataset.n_chunks,
        "words_per_chunk": dataset.manifest["words_per_chunk"],
    }


def describe_artifact(fitted: LoadedModel) -> dict[str, str]:
    """Name the artifact of a fit: its path, and the digest that tells it from any other."""
    return {"path": str(fitted.artifact.path.resolve()), "digest": fitted.digest}


def compute_fingerprint(described: dict[str, Any]) -> str:
    """Digest of a provenance; where dataset and artifacts lie decides nothing."""
    names = ("dataset", "queries", "warm_start")
    lying = {name: described[name] for name in names if described.get(name)}
    unplaced = {name: {**part, "path": ""} for name, part in lying.items()}
    text = json.dumps({**described, **unplaced}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def describe_outcome(model: Model, dataset: BinaryDataset, state: FitState) -> dict[str, Any]:
    """Describe what a fit ended with."""
    names = (dataset.feature_names, dataset.segment_names)
    convergence, history = model.get_convergence_criterion(state), state.history
    labels = name_categories(model, state.params, dataset)
    return {
        "iterations": state.iteration,
        "converged": convergence.has_converged(history),
        "history": history,
        "objective": find_final_objective(convergence, history) if history else None,
        "diagnostics": state.diagnostics,
        "warnings": [notice.render(*names) for notice in state.warnings],
        "n_components": int(state.diagnostics["n_components"]),
        **({"labels": labels} if labels else {}),
    }


TrainingOverlap = Literal["all", "some", "none", "unknown"]
"""How many of the rows that are scored were fitted."""


@dataclass(frozen=True)
class TrainingRows:
    """Rows that were fitted: those of a split, or all, of the leading chunks of a dataset."""

    dataset: BinaryDataset
    split: str | None
    n_chunks: int
    skipped: tuple[int, ...] = ()

    @property
    def leading_chunks(self) -> int | None:
        """Number of chunks, or None where they are the whole dataset."""
        return self.n_chunks if self.n_chunks < self.dataset.n_chunks else None

    def make_row_source(self, memory: int, columns: tuple[str, ...] = ()) -> RowSource:
        """Give the rows, which may stay in memory, with per-row columns."""
        found = make_row_source(self.dataset, self.split, memory, self.skipped, columns)
        return replace(found, n_chunks=self.n_chunks)

    def find_overlap(self, dataset: BinaryDataset, split: str | None) -> TrainingOverlap:
        """Tell how many rows of a split, or of all, are among those that were fitted."""
        shared = min(self.n_chunks, dataset.n_chunks)
        if digest_leading_chunks(self.dataset, shared) != digest_leading_chunks(dataset, shared):
            return "none"
        if None not in (split, self.split) and split != self.split:
            return "none"
        whole = self.split in (None, split) and dataset.n_chunks == shared and not self.skipped
        return "all" if whole else "some"


def make_training_rows(dataset: BinaryDataset, split: str | None) -> TrainingRows:
    """Give all rows of a split of a dataset as those of a fit."""
    return TrainingRows(dataset, split, dataset.n_chunks)


def find_training_rows(manifest: Mapping[str, Any], here: BinaryDataset) -> TrainingRows | None:
    """Find the rows that an artifact was fitted to.

    Parameters
    ----------
    manifest
        Of the artifact.
    here
        A dataset that may hold them where the one recorded is not there any more.

    Returns
    -------
    Training or None
        None if they are not to be had: moved, deleted, or changed since.
    """
    recorded = manifest["dataset"]
    n_chunks, digest = int(recorded["n_chunks"]), recorded.get("chunks_digest")
    skipped = tuple(int(part["chunk"]) for part in manifest.get("skipped_chunks", ()))
    for dataset in _iter_candidate_datasets(recorded["path"], here):
        if n_chunks <= dataset.n_chunks and digest_leading_chunks(dataset, n_chunks) == digest:
            return TrainingRows(dataset, manifest["split"], n_chunks, skipped)
    return None


def _iter_candidate_datasets(path: str, here: BinaryDataset) -> Iterator[BinaryDataset]:
    yield here
    with suppress(DataError):
        yield open_dataset(path)
