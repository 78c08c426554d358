"""What an artifact records: what was fitted to what, by which code, and what came of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from flows.data.datasets import digest_leading_chunks
from flows.data.fitted import LoadedModel
from pipeline.errors import keep_placeholder
from pipeline.evaluation.prediction import name_categories
from pipeline.executors.code_digest import digest_modules
from pipeline.learning.convergence import find_ending
from pipeline.models.base import Model
from pipeline.models.state import FitState
from storage.dataset.dataset import BinaryDataset

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
    ending = find_ending(model.get_convergence_criterion(state), state.history)
    labels = name_categories(model, state.params, dataset)
    return {
        "iterations": state.iteration,
        "converged": ending.converged,
        "history": state.history,
        "objective": ending.objective,
        "diagnostics": state.diagnostics,
        "warnings": [notice.render(*names, spell=keep_placeholder) for notice in state.warnings],
        "n_components": int(state.diagnostics["n_components"]),
        **({"labels": labels} if labels else {}),
    }
