"""Facts about The noisy-OR network."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.facts import Facts, Floats, Pairs


def hidden_states(params: Any) -> tuple[Floats, Floats, None]:
    """All states of the units of one layer with their probabilities."""
    off = np.exp(-params.leaks[-1])
    states = (np.arange(2 ** len(off))[:, None] >> np.arange(len(off)) & 1).astype(np.float64)
    return states, np.where(states == 1, 1 - off, off).prod(axis=1), None


def shares_of_pairs(params: Any) -> Floats:
    """How often features are on together, under the model."""
    states, mass, _ = hidden_states(params)
    given = 1 - np.exp(-params.leaks[0] - states @ params.weights[0].T)
    shares = given.T @ (mass[:, None] * given)
    np.fill_diagonal(shares, mass @ given)
    return shares


def joint_shares(found: Any, truth: Any) -> Pairs:
    """Distributions alone: units may change order, and several may do the work of one."""
    return {"shares": (shares_of_pairs(found), shares_of_pairs(truth))}


FACTS = Facts(
    "noisy-or",
    plain={"starts": 2, "epochs": 5},
    variants=(
        {"layers": (3, 2), "n_components": None, "schedule": "stability"},
        {"layers": (3, 2), "n_components": None, "top": "exclusive"},
        {"tempering": 0.5, "prune": True, "sweeps": 5, "leaks": "learned"},
    ),
    rising=(({"beta": 1.0}, 1e-9),),
    codes=hidden_states,
    flexible={"n_components": 6, "leaks": "learned"},
    consistent={"leaks": "learned"},
    recovered=joint_shares,
    errors={"shares": 1.0},
    fit_off=0.14,  # causes only turn features on: no two of these ever oppose each other,
    truthful={},
    slow=(
        "test_a_fit_has_the_pair_shares_of_its_data",
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_a_fit_to_a_sample_recovers_the_parameters",
        "test_a_warm_start_from_its_own_end_stays_there",
        "test_chunks_do_not_matter",
        "test_codes_do_not_depend_on_how_rows_are_cut",
        "test_degenerate_columns_are_refused_by_name_or_fitted",
        "test_parameters_of_segments_say_of_which",
        "test_segments_matter_to_models_that_have_some",
        "test_they_are_with_other_settings_too",
        "test_threads_give_the_bytes_of_serial",
        "test_what_is_counted_does_not_depend_on_parameters",
    ),
)
