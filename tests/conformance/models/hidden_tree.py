"""Facts about The hidden tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.facts import Facts, Floats, Pairs
from tests.conformance.models.bernoulli_mixture import codes_of_components


def pairs_of_levels(params: Any) -> Floats:
    """P(x_i = a, x_j = b), the mean over the trees; states are identifiable only through them."""
    n_trees, n_features, _, n_levels = params.emissions.shape
    margins = params.compute_state_margins(params.root_weights[:, None])[:, :, 0]
    order, emissions = params.order.tolist(), params.emissions
    states = np.zeros((n_trees, n_features, n_features, params.n_states, params.n_states))
    pairs = np.zeros((n_features, n_features, n_levels, n_levels))
    for place, i in enumerate(order):
        states[:, i, i] = margins[:, i, :, None] * np.eye(params.n_states)
        own = (margins[:, i, :, None] * emissions[:, i]).sum(axis=1).mean(axis=0)
        pairs[i, i] = np.diag(own)
        for j in order[:place]:
            states[:, j, i] = states[:, j, params.parents[i]] @ params.transitions[:, i]
            states[:, i, j] = states[:, j, i].swapaxes(1, 2)
            both = emissions[:, j].swapaxes(1, 2) @ states[:, j, i] @ emissions[:, i]
            pairs[j, i] = both.mean(axis=0)
            pairs[i, j] = pairs[j, i].T
    return pairs


def pairs_and_margins(found: Any, truth: Any) -> Pairs:
    """Pairs of levels, and the margins."""
    return {
        "pairs": (pairs_of_levels(found), pairs_of_levels(truth)),
        "margins": (found.margins, truth.margins),
    }


FACTS = Facts(
    "hidden-tree",
    plain={"tol": 1e-5},
    variants=(
        {"n_components": None, "max_iter": 60, "tol": 1e-3},
        {"n_components": 6, "trees": 3},
        {"smoothing": 1e-6, "tol": 1e-6},
        {"n_components": 1},
    ),
    rising=(({}, 1e-9), ({"n_components": 8, "trees": 2, "smoothing": 2.0}, 1e-9)),
    codes=codes_of_components,
    has_edges=True,
    flexible={"n_components": 16, "tol": 1e-4},
    recovered=pairs_and_margins,
    errors={"pairs": 0.6, "margins": 0.6},
    truthful={},
    slow=(
        "test_a_fit_has_the_pair_shares_of_its_data",
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_a_warm_start_from_its_own_end_stays_there",
        "test_chunks_do_not_matter",
        "test_integer_weights_equal_repeated_rows",
        "test_they_are_with_other_settings_too",
        "test_threads_give_the_bytes_of_serial",
    ),
)
