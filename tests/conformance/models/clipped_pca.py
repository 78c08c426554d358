"""Facts about Clipped PCA."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.numerics.metrics import match_columns
from tests.conformance.facts import N_FEATURES, Facts, Pairs


def principal_components(found: Any, truth: Any) -> Pairs:
    """Clipped PCA, up to signs: the components are those of W Wᵀ + Ψ, not W itself."""
    correlation = truth.loadings @ truth.loadings.T
    np.fill_diagonal(correlation, 1.0)
    values, vectors = np.linalg.eigh(correlation)
    components = (vectors * np.sqrt(values))[:, -truth.loadings.shape[1] :]
    return {
        "thresholds": (found.thresholds, truth.thresholds),
        "correlation": (found.correlation, correlation),
        "loadings": (match_columns(found.loadings, components), components),
    }


FACTS = Facts(
    "clipped-pca",
    tolerant={"constant_features": "keep"},
    variants=(
        {"correlation": "arcsine"},
        {"n_components": 2, "estimator": "minres", "rotation": "oblimin"},
        {"empty_cells": "half"},
        {"repair": "nearest"},
        {"n_components": None},
        {"n_components": N_FEATURES},
    ),
    recovered=principal_components,
    errors={"thresholds": 1.5, "correlation": 1.9, "loadings": 1.5},
)
