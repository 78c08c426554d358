"""Facts about The mixture of trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from pipeline.numerics.trees.spanning_tree import ROOT
from tests.conformance.facts import Facts, Floats, Pairs
from tests.conformance.models.bernoulli_mixture import codes_of_components


def pairs_of_levels(params: Any) -> Floats:
    """P(x_i = a, x_j = b) in each component, which weak edges hardly matter to."""
    n_features, n_levels = params.tables.shape[1:3]
    margins = params.compute_margins()
    pairs = np.zeros((len(params.weights), n_features, n_levels, n_features, n_levels))
    for k, order in enumerate(params.orders):
        for place, i in enumerate(order):
            parent = params.parents[k, i]
            pairs[k, i, :, i] = np.diag(margins[k, i])
            for j in order[:place]:
                if parent == ROOT:
                    both = np.outer(margins[k, j], margins[k, i])
                else:
                    both = pairs[k, j, :, parent] @ params.tables[k, i]
                pairs[k, j, :, i], pairs[k, i, :, j] = both, both.T
    return pairs.reshape(len(pairs), -1)


def pairs_by_component(found: Any, truth: Any) -> Pairs:
    """Pairs of levels, up to the order of the components."""
    pairs = [pairs_of_levels(params) for params in (found, truth)]
    apart = np.abs(pairs[1][:, None] - pairs[0]).sum(axis=2)
    _, order = linear_sum_assignment(apart)
    return {
        "pairs": (pairs[0][order], pairs[1]),
        "weights": (found.weights[order], truth.weights),
        "margins": (found.margins, truth.margins),
    }


FACTS = Facts(
    "tree-mixture",
    plain={"tol": 1e-4, "starts": 1},
    variants=(
        {"n_components": None, "max_iter": 40},
        {"smoothing": 1e-6, "starts": 3},
        {"n_components": 1},
    ),
    rising=(({}, 1e-9), ({"n_components": 8, "smoothing": 5.0}, 1e-9)),
    codes=codes_of_components,
    has_edges=True,
    flexible={"n_components": 8},
    consistent={"n_components": 1},
    recovered=pairs_by_component,
    truthful={},
    slow=(
        "test_a_fit_has_the_pair_shares_of_its_data",
        "test_a_fit_of_weighted_rows_is_that_of_repeated_rows",
        "test_a_fit_recovers_the_model_that_it_sampled",
        "test_a_warm_start_from_its_own_end_stays_there",
        "test_an_empty_level_is_bounded_and_reported",
        "test_chunks_do_not_matter",
        "test_codes_do_not_depend_on_how_rows_are_cut",
        "test_degenerate_columns_are_refused_by_name_or_fitted[ordinal]",
        "test_imputed_probabilities_are_those_of_the_log_likelihood",
        "test_integer_weights_equal_repeated_rows",
        "test_the_objective_never_falls",
        "test_the_size_of_sampling_weights_does_not_matter",
        "test_they_are_with_other_settings_too",
        "test_threads_give_the_bytes_of_serial",
        "test_what_is_counted_does_not_depend_on_parameters",
    ),
)
