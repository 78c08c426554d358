"""Rounds of expectation propagation over the sites of one row.

`expectation_propagation` says what for.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.numerics.probit.probit_sites import (
    MEAN,
    N_FIELDS,
    OFFSET,
    PRECISION,
    SHIFT,
    VARIANCE,
    Floats,
    ProbitRow,
    Z,
    dot,
    kernel,
    log_site_scales,
    match_site_moments,
    set_cavities,
    update_moments,
)

# Rows of a fitted model need 5 to 15 rounds; a row that needs more is one that oscillates.
_PARALLEL_ROUNDS = 15
_DAMPING = 0.8


class ProbitRows(NamedTuple):
    """Rows and their model in units of the prior, and when to stop."""

    X: NDArray[np.uint8]
    observed: NDArray[np.bool_]
    weights: Floats  # (K, n_features)
    offsets: Floats
    tail: Floats
    tol: float
    max_rounds: int


@kernel
def allocate_workspace(n_components: int, n: int) -> ProbitRow:
    """Make working memory for a row with n observed sites."""
    return ProbitRow(
        np.empty((N_FIELDS, n)),
        np.empty((n_components, n)),
        np.empty((n_components, n)),
        np.empty((n_components, n_components)),
        np.empty(n_components),
        np.empty(n_components),
        np.empty(n_components),
    )


@kernel
def find_fixed_point(
    rows: ProbitRows, sample: int, row: ProbitRow, square: Floats, features: NDArray[np.int64]
) -> tuple[ProbitRow, int, float]:
    """Find the fixed point of a row, in `row` or in new memory if that has another size.

    Also gives the rounds used and the last change. The sites have their cavities. `square` is
    (K, K) of scratch; `features` lists those observed.
    """
    n_observed = _list_observed(rows.observed[sample], features)
    if n_observed != row.sites.shape[1]:
        row = allocate_workspace(len(rows.weights), n_observed)
    _mirror_row(rows.X[sample], features, rows.weights, rows.offsets, row)
    n_rounds, change = _iterate_rounds(row, square, rows.tail, rows.tol, rows.max_rounds)
    set_cavities(row.sites, rows.tail)
    return row, n_rounds, change


@kernel
def _list_observed(observed: NDArray[np.bool_], features: NDArray[np.int64]) -> int:
    """Write the indices of the observed features; their number."""
    n = 0
    for feature in range(len(observed)):
        if observed[feature]:
            features[n] = feature
            n += 1
    return n


@kernel
def _mirror_row(
    x: NDArray[np.uint8],
    features: NDArray[np.int64],
    weights: Floats,
    offsets: Floats,
    row: ProbitRow,
) -> None:
    """Take over weights and offsets of `features`, signed so that every site stands for x = 1."""
    signs = row.sites[Z]
    for i in range(len(signs)):
        signs[i] = 2.0 * x[features[i]] - 1.0
        row.sites[OFFSET, i] = signs[i] * offsets[features[i]]
    for k in range(len(weights)):
        for i in range(len(signs)):
            row.weights[k, i] = signs[i] * weights[k, features[i]]


@kernel
def _iterate_rounds(
    row: ProbitRow, square: Floats, tail: Floats, tol: float, max_rounds: int
) -> tuple[int, float]:
    """Rounds until the moments rest, parallel ones first; rounds used and the last change."""
    rounds, change = 0, np.inf
    while not change < tol and rounds < max_rounds:
        if rounds in (0, _PARALLEL_ROUNDS):
            _reset_sites(row)
        if rounds < _PARALLEL_ROUNDS:
            match_site_moments(row.sites, 1.0, tail)
        else:
            _sweep_sites(row, square, 1.0 if rounds == _PARALLEL_ROUNDS else _DAMPING, tail)
        change = update_moments(row)
        rounds += 1
    return rounds, change


@kernel
def site_log_evidence(row: ProbitRow) -> float:
    """Log P(x) by the sites (equation 3.65), whose cavities are set."""
    total: float = log_site_scales(row.sites) + 0.5 * dot(row.linear, row.linear)
    for k in range(len(row.mean)):
        total += math.log(row.factor[k, k])
    return total


@kernel
def _reset_sites(row: ProbitRow) -> None:
    """Set the sites to nothing and all moments to those of the prior."""
    sites = row.sites
    for i in range(sites.shape[1]):
        sites[PRECISION, i] = sites[SHIFT, i] = sites[MEAN, i] = sites[VARIANCE, i] = 0.0
    for k in range(len(row.mean)):
        row.mean[k], row.variance[k] = 0.0, 1.0
        for j in range(len(row.mean)):
            row.factor[k, j] = 1.0 if k == j else 0.0
        for i in range(sites.shape[1]):
            sites[VARIANCE, i] += row.weights[k, i] ** 2


@kernel
def _sweep_sites(row: ProbitRow, covariance: Floats, step: float, tail: Floats) -> None:
    """Update the sites in turn, and the moments of u after every one."""
    centre, image = np.empty(len(row.mean)), np.empty(len(row.mean))
    for k in range(len(centre)):
        centre[k] = row.mean[k]
        for j in range(k + 1):
            covariance[j, k] = covariance[k, j] = dot(row.factor[k, k:], row.factor[j, k:])
    site = np.empty((N_FIELDS, 1))
    for i in range(row.sites.shape[1]):
        site[OFFSET, 0] = row.sites[OFFSET, i]
        site[PRECISION, 0], site[SHIFT, 0] = row.sites[PRECISION, i], row.sites[SHIFT, i]
        _update_site(site, row.weights, i, step, tail, centre, covariance, image)
        row.sites[PRECISION, i], row.sites[SHIFT, i] = site[PRECISION, 0], site[SHIFT, 0]


@kernel
def _update_site(
    site: Floats,
    weights: Floats,
    i: int,
    step: float,
    tail: Floats,
    centre: Floats,
    covariance: Floats,
    image: Floats,
) -> None:
    """Update site i, given alone, and with it `centre` and `covariance`; `image` is scratch."""
    mean, variance = 0.0, 0.0
    for k in range(len(centre)):
        image[k] = 0.0
        for j in range(len(centre)):
            image[k] += weights[j, i] * covariance[k, j]
        mean += weights[k, i] * centre[k]
        variance += weights[k, i] * image[k]
    precision, shift = site[PRECISION, 0], site[SHIFT, 0]
    site[MEAN, 0], site[VARIANCE, 0] = mean, variance
    match_site_moments(site, step, tail)
    precision, shift = site[PRECISION, 0] - precision, site[SHIFT, 0] - shift
    gain = 1.0 / (1.0 + precision * variance)
    for k in range(len(centre)):
        centre[k] += gain * (shift - precision * mean) * image[k]
        for j in range(len(centre)):
            covariance[k, j] -= gain * precision * image[k] * image[j]
