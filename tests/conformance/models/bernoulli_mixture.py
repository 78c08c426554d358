"""Facts about The Bernoulli mixture."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from tests.conformance.facts import Facts, Floats, Pairs


def codes_of_components(params: Any) -> tuple[Floats, Floats, None]:
    """Codes that name one component each, as often as it comes."""
    return np.eye(len(params.weights)), params.weights, None


def kinds_of_rows(found: Any, truth: Any) -> Pairs:
    """Mixture, up to order."""
    apart = np.abs(truth.probabilities[:, None] - found.probabilities).sum(axis=2)
    _, order = linear_sum_assignment(apart)
    return {
        "probabilities": (found.probabilities[order], truth.probabilities),
        "weights": (found.weights[order], truth.weights),
    }


FACTS = Facts(
    "bernoulli-mixture",
    plain={"tol": 1e-7},
    variants=({"n_components": None, "max_iter": 40}, {"smoothing": 1e-6}),
    rising=(({}, 1e-9), ({"n_components": 8, "smoothing": 1.0}, 1e-9)),
    codes=codes_of_components,
    flexible={"n_components": 30},
    consistent={"n_components": 3},
    recovered=kinds_of_rows,
    errors={"probabilities": 1.2, "weights": 0.6},
    truthful={},
    slow=(
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_they_are_with_other_settings_too",
        "test_threads_give_the_bytes_of_serial[continuous]",
    ),
)
