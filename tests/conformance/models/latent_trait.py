"""Facts about The latent trait model."""

from __future__ import annotations

from typing import Any

from pipeline.numerics.metrics import match_columns
from tests.conformance.facts import Facts, Pairs


def principal_axes_of_weights(found: Any, truth: Any) -> Pairs:
    """Latent trait: rotations are fixed by the principal axes, up to order and signs."""
    return {
        "weights": (match_columns(found.weights, truth.weights), truth.weights),
        "offsets": (found.offsets, truth.offsets),
    }


FACTS = Facts(
    "latent-trait",
    # Quadrature starts where the bound's stage stops, a pass sooner or later.
    plain={"estimator": "variational", "tol": 1e-7},
    leveled={"estimator": "auto", "nodes": 15, "tol": 1e-5},
    flexible={"nodes": 41},  # with 15, samples of steep items have other shares
    tolerant={"constant_features": "keep"},
    finite={"prior_precision": 1.0},
    variants=(
        {"estimator": "auto", "nodes": 9, "tol": 1e-5},
        {"estimator": "quadrature", "prior_precision": 0.1},
        {"estimator": "sampling", "nodes": 50, "max_iter": 100, "tol": 1e-6},
        {"n_components": None, "max_iter": 40},
        {"estimator": "ep", "prior_precision": 1.0, "tol": 1e-5},
        {"rotation": "promax", "tol": 1e-5},
    ),
    rising=(
        ({}, 1e-3),
        ({"acceleration": "none", "prior_precision": 1.0}, 1e-3),
        ({"estimator": "auto"}, 1e-9),
        ({"estimator": "ep"}, 1e-4),
        ({"estimator": "quadrature"}, 1e-9),
        # With fewer nodes, other scales of the trait are not represented exactly.
        (
            {"estimator": "quadrature", "prior_precision": 1.0, "n_components": 1, "nodes": 25},
            1e-9,
        ),
        ({"estimator": "sampling", "acceleration": "none"}, 1e-9),
    ),
    consistent={"estimator": "quadrature"},  # the bound makes slopes too small
    recovered=principal_axes_of_weights,
    errors={"weights": 10.8, "offsets": 5.0},
    single_precision=(
        "values-information",
        "values-products",
        "values-item_variance",
        "values-shared_variance",
    ),
    truthful={},
    slow=(
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_a_fit_to_a_sample_recovers_the_parameters",
        "test_a_warm_start_from_its_own_end_stays_there",
        "test_chunks_do_not_matter[continuous]",
        "test_chunks_do_not_matter[ordinal]",
        "test_parameters_of_segments_say_of_which",
        "test_segments_matter_to_models_that_have_some",
        "test_the_objective_never_falls",
        "test_they_are_with_other_settings_too",
        "test_threads_give_the_bytes_of_serial[continuous]",
        "test_threads_give_the_bytes_of_serial[ordinal]",
        "test_what_is_counted_does_not_depend_on_parameters",
    ),
)
