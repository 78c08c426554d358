"""Facts about the Ising model."""

from __future__ import annotations

from typing import Any

from tests.conformance.facts import Facts, Pairs


def couplings_and_thresholds(found: Any, truth: Any) -> Pairs:
    """What determines the distribution."""
    return {name: (getattr(found, name), getattr(truth, name)) for name in ("couplings", "shares")}


FACTS = Facts(
    "ising",
    variants=(
        {"penalty": "none", "refit": "likelihood"},
        {"penalty": "ridge", "strength": 0.01},
        {"strength": 0.02, "rule": "or", "refit": "pseudo"},
        {"gamma": 0.0, "path": 5, "draws": 2},
    ),
    flexible={"penalty": "none", "refit": "likelihood"},
    consistent={"penalty": "none"},
    recovered=couplings_and_thresholds,
    errors={"couplings": 5.0},
    shares_off=0.03,  # each of 5,000 chains yields several rows
    slow=(
        "test_a_fit_has_the_pair_shares_of_its_data",
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_the_objective_never_falls",
    ),
)
