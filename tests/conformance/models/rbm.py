"""Facts about The restricted Boltzmann machine."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.facts import Facts, Floats, Pairs


def hidden_states(params: Any) -> tuple[Floats, Floats, None]:
    """All states of the hidden units with their probabilities."""
    n_hidden = len(params.hidden_biases)
    h = (np.arange(2**n_hidden)[:, None] >> np.arange(n_hidden) & 1).astype(np.float64)
    inputs = h @ params.weights.T + params.visible_biases
    logs = h @ params.hidden_biases + np.logaddexp(0, inputs).sum(axis=1)
    return h, np.exp(logs - params.log_z), None


def shares_of_pairs(params: Any) -> Floats:
    """How often features are on together, under the model."""
    h, mass, _ = hidden_states(params)
    given_h = 1 / (1 + np.exp(-h @ params.weights.T - params.visible_biases))
    shares = given_h.T @ (mass[:, None] * given_h)
    np.fill_diagonal(shares, mass @ given_h)
    return shares


def joint_shares(found: Any, truth: Any) -> Pairs:
    """Distributions alone: hidden units may change order, and which of their states is 1."""
    return {"shares": (shares_of_pairs(found), shares_of_pairs(truth))}


FACTS = Facts(
    "rbm",
    plain={"max_iter": 30},
    variants=(
        {"method": "cd", "optimizer": "momentum", "weight_decay": 1e-4},
        {"sparsity": 0.1, "steps": 2, "max_iter": 20},
    ),
    rising=(),
    codes=hidden_states,
    flexible={
        "method": "pcd",
        "n_components": 12,
        "steps": 5,
        "max_iter": 60,
        "patience": 60,
        "momentum": 0.0,
    },
    consistent={"steps": 5, "batch": 500, "max_iter": 20, "patience": 20},
    recovered=joint_shares,
    errors={"shares": 1.5},
    n_sampled=20_000,
    shares_off=0.03,
    fit_off=0.035,  # a chain stays in its mode: of 5,000 a share is known to 0.007,
    truthful={},
    slow=(
        "test_a_fit_has_the_pair_shares_of_its_data",
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_chunks_do_not_matter",
        "test_codes_do_not_depend_on_how_rows_are_cut",
        "test_degenerate_columns_are_refused_by_name_or_fitted",
    ),
)
