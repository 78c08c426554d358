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
    variants=({"n_components": None, "max_iter": 40}, {"smoothing": 1e-6}),
    rising=(({}, 1e-9), ({"n_components": 8, "smoothing": 1.0}, 1e-9)),
    codes=codes_of_components,
    flexible={"n_components": 30},
    consistent={"n_components": 3},
    recovered=kinds_of_states,
    errors={"probabilities": 1.2},
)
