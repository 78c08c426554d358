"""Facts about BLICA."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.numerics.metrics import match_columns
from tests.conformance.facts import Facts, Floats, Pairs, codes_by_segment


def nonstationary_sources(found: Any, truth: Any) -> Pairs:
    """BLICA, up to order and signs: columns of length 1, and with their sources' deviations."""
    signals = [signal_correlations(params) for params in (found, truth)]
    return {
        "thresholds": (found.thresholds, truth.thresholds),
        "mixing": (match_columns(found.mixing, truth.mixing), truth.mixing),
        "source_variances": (match_columns(*signals), signals[1]),
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
    leveled={"regularization": 5.0},  # with 20, reversal changes a level by 0.007
    codes=codes_by_segment,
    consistent={"regularization": 100.0},  # so large that it ridges no segment
    recovered=nonstationary_sources,
    errors={"thresholds": 4.2, "mixing": 1.7, "source_variances": 2.5},
    slow=(
        "test_likelihoods_are_those_of_samples",
        "test_segments_matter_to_models_that_have_some",
        "test_they_are_with_other_settings_too",
        "test_threads_give_the_bytes_of_serial",
    ),
)
