"""BLICA keeps the laws."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.metrics import matched_columns
from tests.conformance.facts import Facts, Floats, Pairs, normal_codes
from tests.conformance.laws import *  # noqa: F403


def codes_by_segment(params: Any) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Codes with the means and variances that a segment's sources have."""
    nodes, mass = normal_codes(2)
    shares = params.segment_rows / params.segment_rows.sum()
    deviations = np.sqrt(params.source_variances)
    codes = params.source_means[:, None] + deviations[:, None] * nodes
    segments = np.repeat(params.segments, len(nodes))
    return codes.reshape(-1, 2), np.outer(shares, mass).ravel(), segments


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


FACTS = Facts(
    "blica",
    plain={"regularization": 20.0},
    variants=(
        {"regularization": 5.0},
        {"n_components": None},
        {"n_components": 1, "regularization": 20.0, "bootstrap": 20},
        {"min_rows": 1, "starts": 1},
    ),
    codes=codes_by_segment,
    consistent={"regularization": 100.0},  # so large that it ridges no segment
    recovered=nonstationary_sources,
    errors={"thresholds": 4.2, "mixing": 1.7, "source_variances": 2.5},
)
