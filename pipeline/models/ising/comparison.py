"""Permutation tests of differences between the networks of groups of rows.

The tests of C. D. van Borkulo et al., "Comparing network structures on three aspects",
Psychological Methods 28, 2023: M, the largest absolute difference of two couplings; S, the
difference of global strength Σ |J_ij|; and the difference of each coupling. New labels are as
likely as the given ones if the groups do not differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy

from pipeline.arrays import Array
from pipeline.models.capabilities import NetworkDifference
from pipeline.models.ising.params import GroupNetworks, NetworkTests
from pipeline.models.ising.row_sets import list_pairs


def list_differences(groups: GroupNetworks) -> list[NetworkDifference]:
    """Return the differences of all pairs of groups.

    p is that of the permutation test. Without permutations, it is that of a Wald test, by (J_a −
    J_b)² / (s_a² + s_b²) with the standard errors s; without these either, it is NaN. It also is of
    features that are constant in one of the groups.
    """
    found, errors = [], groups.group_couplings_error
    for k, (a, b) in enumerate(list_pairs(len(groups.segments))):
        difference = groups.group_couplings[a] - groups.group_couplings[b]
        p = np.full_like(difference, np.nan)
        if groups.tests is not None:
            p = groups.tests.difference_p[k].copy()
        elif errors is not None:
            error = np.sqrt(errors[a] ** 2 + errors[b] ** 2)
            is_known = (errors[a] > 0) & (errors[b] > 0)
            ratio = np.divide(np.abs(difference), error, out=p, where=is_known)
            p = 2 * scipy.special.ndtr(-ratio)
        is_constant = np.asarray(np.isin(groups.group_shares[[a, b]], (0, 1)).any(axis=0))
        p[is_constant | is_constant[:, None] | np.eye(len(p), dtype=np.bool_)] = np.nan
        found.append(NetworkDifference((a, b), difference, p))
    return found


def summarize_tests(tests: NetworkTests, groups: Sequence[str]) -> dict[str, Any]:
    """Return the global tests of each pair of groups, by name."""
    names = ("largest_difference", "strength_difference")
    return {
        "network_tests": [
            {"groups": [groups[a], groups[b]]}
            | {key: float(getattr(tests, key)[k]) for name in names for key in (name, f"{name}_p")}
            for k, (a, b) in enumerate(list_pairs(len(groups)))
        ]
    }


def compare_networks(first: Array, second: Array) -> tuple[Array, Array, Array]:
    """Return M, S, first less second, and the difference of couplings, (n, n)."""
    difference, upper = first - second, np.triu_indices(len(first), 1)
    largest = np.abs(difference[upper]).max(initial=0.0)
    strength = np.abs(first[upper]).sum() - np.abs(second[upper]).sum()
    return np.asarray(largest), np.asarray(strength), difference


def test_differences(
    couplings: Sequence[Array],
    drawn: Iterator[Array],
    n_draws: int,
) -> NetworkTests:
    """Test the differences of all pairs of groups.

    Parameters
    ----------
    couplings
        Those of each group, (n_features, n_features).
    drawn
        Those of both groups with new labels: pair by pair of groups, draw by draw.
    n_draws
        Number of draws of each pair.
    """
    found = []
    for a, b in list_pairs(len(couplings)):
        observed = compare_networks(couplings[a], couplings[b])
        n_exceeding = [np.zeros(np.shape(values), np.int64) for values in observed]
        for _ in range(n_draws):
            drawn_values = compare_networks(next(drawn), next(drawn))
            for count, own, values in zip(n_exceeding, drawn_values, observed, strict=True):
                count += np.abs(own) >= np.abs(values)
        # The given labels are one of the draws.
        p = [np.asarray((count + 1) / (n_draws + 1)) for count in n_exceeding]
        found.append((observed[0], p[0], observed[1], p[1], p[2]))
    return NetworkTests(*map(np.stack, zip(*found, strict=True)))
