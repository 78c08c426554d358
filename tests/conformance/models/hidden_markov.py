"""Facts about the hidden Markov model."""

from __future__ import annotations

from typing import Any

from tests.conformance.facts import Facts, Pairs
from tests.conformance.models.bernoulli_mixture import codes_of_components, kinds_of_rows


def kinds_of_states(found: Any, truth: Any) -> Pairs:
    """States, up to order; how they follow each other is tested with sequences."""
    return {"probabilities": kinds_of_rows(found, truth)["probabilities"]}


FACTS = Facts(
    "hidden-markov",
    plain={"tol": 1e-7},
    variants=({"n_components": None, "max_iter": 40, "starts": 1}, {"smoothing": 1e-6}),
    rising=(({}, 1e-9), ({"n_components": 8, "smoothing": 1.0}, 1e-9)),
    codes=codes_of_components,
    flexible={"n_components": 16, "starts": 1, "max_iter": 12},
    consistent={"n_components": 3},
    recovered=kinds_of_states,
    errors={"probabilities": 1.2},
    n_rows=1000,
    n_varied=5000,
    n_sampled=5000,
    shares_off=0.03,
    fit_off=0.04,
    slow=(
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_a_fit_to_a_sample_recovers_the_parameters",
        "test_a_fit_that_has_not_converged_says_so",
        "test_a_warm_start_from_its_own_end_stays_there",
        "test_imputed_probabilities_are_those_of_the_log_likelihood",
        "test_names_and_order_of_levels_do_not_matter",
        "test_reversed_values_only_flip_signs",
        "test_the_objective_never_falls",
        "test_they_are_with_other_settings_too",
        "test_threads_give_the_bytes_of_serial",
    ),
)
