"""What the laws of `test_model_conformance` need to know of single models, and rows for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import pipeline.models  # noqa: F401  registers
from pipeline.api import Fitted
from pipeline.models.base import MODELS
from pipeline.numerics.metrics import matched_columns
from pipeline.params import named_arrays
from pipeline.using.simulate import draw_rows, draws_of, segments_to_draw
from storage.artifact_reader import ArtifactReader
from storage.artifacts import Artifact
from storage.bits import unpack_rows
from tests.strategies import Data

Floats = NDArray[np.float64]
Pairs = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]

N_FEATURES = 6


def normal_codes(n_components: int) -> tuple[Floats, Floats]:
    """Gauss–Hermite nodes and weights of standard normal codes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(*[nodes] * n_components, indexing="ij"), axis=-1)
    shares = np.stack(np.meshgrid(*[weights] * n_components, indexing="ij"), axis=-1)
    mass = shares.reshape(-1, n_components).prod(axis=1)
    return grid.reshape(-1, n_components), mass / mass.sum()


def standard_codes(params: Any) -> tuple[Floats, Floats, None]:
    """Codes that are standard normal in every segment."""
    return *normal_codes(2), None


def codes_by_segment(params: Any) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Codes with the means and variances that a segment's sources have."""
    nodes, mass = normal_codes(2)
    shares = params.segment_rows / params.segment_rows.sum()
    deviations = np.sqrt(params.source_variances)
    codes = params.source_means[:, None] + deviations[:, None] * nodes
    segments = np.repeat(params.segments, len(nodes))
    return codes.reshape(-1, 2), np.outer(shares, mass).ravel(), segments


def codes_of_components(params: Any) -> tuple[Floats, Floats, None]:
    """Codes that name one component each, as often as it comes."""
    return np.eye(len(params.weights)), params.weights, None


def every_array(found: Any, truth: Any) -> Pairs:
    """All arrays as they are, of a model that says nothing of what is not identifiable."""
    return {
        name: (getattr(found, name), values) for name, (_, values) in named_arrays(truth).items()
    }


def principal_components(found: Any, truth: Any) -> Pairs:
    """Clipped PCA, up to signs: the components are those of W Wᵀ + Ψ, not W itself."""
    correlation = truth.loadings @ truth.loadings.T
    np.fill_diagonal(correlation, 1.0)
    values, vectors = np.linalg.eigh(correlation)
    components = (vectors * np.sqrt(values))[:, -truth.loadings.shape[1] :]
    return {
        "thresholds": (found.thresholds, truth.thresholds),
        "correlation": (found.correlation, correlation),
        "loadings": (matched_columns(found.loadings, components), components),
    }


def nonstationary_sources(found: Any, truth: Any) -> Pairs:
    """BLICA, up to order and signs: columns of length 1, and with their sources' deviations."""
    signals = [signal_correlations(params) for params in (found, truth)]
    return {
        "thresholds": (found.thresholds, truth.thresholds),
        "mixing": (matched_columns(found.mixing, truth.mixing), truth.mixing),
        "source_variances": (matched_columns(*signals), signals[1]),
    }


def signal_correlations(params: Any) -> Floats:
    """Correlations of sources with what is clipped: segments by features in rows."""
    signal = params.mixing * np.sqrt(np.pi / 8 * params.source_variances)[:, None]
    deviations = np.sqrt(1 + (signal**2).sum(axis=2, keepdims=True))
    return (signal / deviations).reshape(-1, signal.shape[2])


def principal_axes_of_weights(found: Any, truth: Any) -> Pairs:
    """Latent trait: rotations are fixed by the principal axes, up to order and signs."""
    return {
        "weights": (matched_columns(found.weights, truth.weights), truth.weights),
        "offsets": (found.offsets, truth.offsets),
    }


def kinds_of_rows(found: Any, truth: Any) -> Pairs:
    """Mixture, up to order."""
    apart = np.abs(truth.probabilities[:, None] - found.probabilities).sum(axis=2)
    _, order = linear_sum_assignment(apart)
    return {
        "probabilities": (found.probabilities[order], truth.probabilities),
        "weights": (found.weights[order], truth.weights),
    }


@dataclass(frozen=True)
class Facts:
    """What the laws need to know of one model beyond the protocol; a new model may do without.

    Attributes
    ----------
    plain
        Settings with which results do not depend on how rows are cut.
    tolerant
        Settings that accept degenerate columns where the defaults refuse them.
    variants
        Settings that the degenerate columns are tried with, besides the defaults.
    rising
        Settings, and by how many nats per row the objective may fall in a pass under them.
    codes
        Codes, their probabilities and segments, to integrate `reconstruct` over.
    flexible
        Settings with which the model can be like probit data.
    consistent
        Settings with which estimates have no bias that stays however many rows there are.
    recovered
        Takes the parameters of a fit to rows, and of what sampled them; gives what was found and
        what it should be, all that the model's module calls unidentifiable taken out.
    errors
        Standard error of the worst entry of what is recovered, times √rows: root mean square of
        20 refits to rows that fits to `varied` sampled.
    """

    plain: Mapping[str, Any] = field(default_factory=dict)
    tolerant: Mapping[str, Any] = field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ()
    rising: Sequence[tuple[Mapping[str, Any], float]] = (({}, 1e-9),)
    codes: Callable[[Any], tuple[Floats, Floats, NDArray[np.int64] | None]] = standard_codes
    flexible: Mapping[str, Any] = field(default_factory=dict)
    consistent: Mapping[str, Any] = field(default_factory=dict)
    recovered: Callable[[Any, Any], Pairs] = every_array
    errors: Mapping[str, float] = field(default_factory=dict)


FACTS = {
    "clipped-pca": Facts(
        tolerant={"constant_features": "keep"},
        variants=(
            {"estimator": "arcsine"},
            {"empty_cells": "half"},
            {"repair": "nearest"},
            {"n_components": None},
            {"n_components": N_FEATURES},
        ),
        recovered=principal_components,
        errors={"thresholds": 1.5, "correlation": 1.9, "loadings": 1.5},
    ),
    "blica": Facts(
        plain={"regularization": 20.0},
        variants=(
            {"regularization": 5.0},
            {"n_components": None},
            {"regularization": 20.0, "bootstrap": 20},
            {"min_rows": 1, "starts": 1},
        ),
        codes=codes_by_segment,
        consistent={"regularization": 100.0},  # so large that it ridges no segment
        recovered=nonstationary_sources,
        errors={"thresholds": 4.2, "mixing": 1.7, "source_variances": 2.5},
    ),
    "latent-trait": Facts(
        plain={"tol": 1e-7},
        tolerant={"constant_features": "pin"},
        variants=(
            {"estimator": "quadrature", "prior_precision": 0.1},
            {"estimator": "sampling", "nodes": 50},
            {"n_components": None, "max_iter": 40},
            {"polish": "quadrature", "rotation": "promax"},
        ),
        rising=(
            ({}, 1e-3),
            ({"acceleration": "none", "prior_precision": 1.0}, 1e-3),
            ({"polish": "quadrature"}, 1e-9),
            ({"estimator": "quadrature"}, 1e-9),
            ({"estimator": "quadrature", "prior_precision": 1.0, "n_components": 1}, 1e-9),
            ({"estimator": "sampling", "acceleration": "none"}, 1e-9),
        ),
        consistent={"estimator": "quadrature"},  # the bound makes slopes too small
        recovered=principal_axes_of_weights,
        errors={"weights": 10.8, "offsets": 5.0},
    ),
    "bernoulli-mixture": Facts(
        plain={"tol": 1e-7},
        variants=({"n_components": None, "max_iter": 40}, {"smoothing": 1e-6}),
        rising=(({}, 1e-9), ({"n_components": 8, "smoothing": 1.0}, 1e-9)),
        codes=codes_of_components,
        flexible={"n_components": 30},
        consistent={"n_components": 3},
        recovered=kinds_of_rows,
        errors={"probabilities": 1.2, "weights": 0.6},
    ),
}

every_model = pytest.mark.parametrize("name", sorted(MODELS))


def facts_of(name: str) -> Facts:
    return FACTS.get(name, Facts())


def make(name: str, **more: Any) -> Any:
    return MODELS[name](**{"n_components": 2, **facts_of(name).plain, **more})  # type: ignore[call-arg]


def tolerant(name: str, **more: Any) -> Any:
    return make(name, **{**facts_of(name).tolerant, **more})


@lru_cache
def varied() -> Data:
    """Rows of 4 segments, whose 2 sources are the stronger ones by turns."""
    rng = np.random.default_rng(3)
    mixing = rng.uniform(0.6, 1.2, (10, 2)) * np.where(np.arange(10)[:, None] % [2, 3], 1, -1)
    deviations = np.array([[1.6, 0.4], [0.4, 1.2], [1.2, 1.0], [0.4, 0.4]])
    segments = rng.choice(4, 20_000, p=[0.35, 0.3, 0.2, 0.15])
    y = rng.standard_normal((len(segments), 2)) * deviations[segments] @ mixing.T
    noise = rng.standard_normal(y.shape)
    return Data((y + noise > np.linspace(-0.6, 0.6, 10)).astype(np.uint8), None, segments)


def sampled(artifact: Artifact, n_rows: int) -> Data:
    """Draw rows as `flows.sample` does."""
    fit_ = Fitted.of(artifact)
    draws = [*draws_of(*segments_to_draw(fit_.params, n_rows), len(fit_.feature_names))]
    reader = ArtifactReader.of(artifact)
    rows = np.vstack([draw_rows(fit_.model, reader, 0, drawn) for drawn in draws])
    segments = [np.repeat(drawn.segments or 0, drawn.n_rows) for drawn in draws]
    return Data(unpack_rows(rows, len(fit_.feature_names)), None, np.concatenate(segments))
