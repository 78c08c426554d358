"""Facts about Binary ICA by likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.numerics.metrics import match_columns
from tests.conformance.facts import Facts, Floats, Pairs, codes_by_segment
from tests.conformance.models.blica import signal_correlations


def thresholds(params: Any) -> Floats:
    """Thresholds of all segments, which say what offsets and means come to."""
    return np.array([params.segment_model(index).thresholds for index in params.segments])


def probit_sources(found: Any, truth: Any) -> Pairs:
    """As of BLICA, with the thresholds that offsets and means come to."""
    signals = [signal_correlations(params) for params in (found, truth)]
    return {
        "thresholds": (thresholds(found), thresholds(truth)),
        "mixing": (match_columns(found.mixing, truth.mixing), truth.mixing),
        "source_variances": (match_columns(*signals), signals[1]),
    }


FACTS = Facts(
    "binary-ica-likelihood",
    variants=(
        {"likelihood": "ep"},
        {"likelihood": "exact", "starts": 1},
        {"n_components": 1},
    ),
    rising=(),
    leveled={"tol": 1e-4, "likelihood": "ep"},  # integrals of levels take long
    codes=codes_by_segment,
    flexible={"likelihood": "ep"},  # of 40 features the integrals take long
    recovered=probit_sources,
    n_rows=1000,
    errors={"thresholds": 4.2, "mixing": 1.7, "source_variances": 2.5},
    slow=(
        "test_a_fit_has_the_pair_shares_of_its_data",
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_a_fit_that_has_not_converged_says_so",
        "test_a_fit_to_a_sample_recovers_the_parameters",
        "test_codes_do_not_depend_on_how_rows_are_cut",
        "test_degenerate_columns_are_refused_by_name_or_fitted",
        "test_impossible_values_are_refused",
        "test_likelihoods_are_those_of_samples",
        "test_parameters_of_segments_say_of_which",
        "test_segments_matter_to_models_that_have_some",
        "test_they_are_with_other_settings_too",
        "test_threads_give_the_bytes_of_serial",
        "test_what_is_counted_does_not_depend_on_parameters",
    ),
)
