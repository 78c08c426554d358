"""What an artifact records: what was fitted to what, by which code, and what came of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pipeline
from pipeline.convergence import ConvergenceMonitor
from pipeline.fit import FitState
from pipeline.models.base import Model
from storage.dataset import BinaryDataset


def provenance(
    model: Model, dataset: BinaryDataset, split: str | None, seed: int
) -> dict[str, Any]:
    """Describe everything that decides the result."""
    return {
        "model": model.name,
        "hyperparameters": asdict(model),  # type: ignore[call-overload]
        "seed": seed,
        "split": split,
        "versions": {name: version(name) for name in ("latentbits", "numpy", "scipy", "numba")},
        "code": _code_digest(),
        "dataset": {
            "path": str(dataset.path.resolve()),
            "digest": dataset.digest,
            "n_rows": dataset.n_rows,
            "n_chunks": dataset.n_chunks,
            "words_per_chunk": dataset.manifest["words_per_chunk"],
        },
        "feature_names": dataset.feature_names,
        "segment_names": dataset.segment_names,
    }


def fingerprint(described: dict[str, Any]) -> str:
    """Digest of a provenance; where the dataset lies decides nothing."""
    data = {name: value for name, value in described["dataset"].items() if name != "path"}
    text = json.dumps({**described, "dataset": data}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def outcome(model: Model, dataset: BinaryDataset, state: FitState) -> dict[str, Any]:
    """Describe what a fit ended with."""
    monitor = ConvergenceMonitor(model.max_iter, model.tol)
    names = (dataset.feature_names, dataset.segment_names)
    warnings = [notice.render(*names) for notice in state.warnings]
    stopped = monitor.warning(state.history)
    return {
        "iterations": state.iteration,
        "converged": monitor.converged(state.history),
        "history": state.history,
        "diagnostics": state.diagnostics,
        "warnings": [*warnings, *([stopped] if stopped else [])],
        "n_components": int(state.diagnostics["n_components"]),
    }


def _code_digest() -> str:
    """Digest of what computes: a fit begun by other code is not gone on with."""
    digest = hashlib.sha256()
    for path in sorted(Path(pipeline.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
