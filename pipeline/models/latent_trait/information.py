"""The pass after a fit: what standard errors are made of and, by quadrature, how well it fits.

By quadrature likelihood and curvature are summed over all rows; scores and residuals, which cost
more, over at most `MAX_ROWS`, of more rows a keyed sample. Pairs and sum scores are counted where
a row has all its values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.numerics.bits.kernels import pack_rows, symmetric_joint_counts
from pipeline.numerics.logistic.centred_points import posterior_by_quadrature
from pipeline.numerics.logistic.latent_nodes import (
    MAX_COMPONENTS,
    NodePosterior,
    Nodes,
    node_mass,
    node_posterior,
)
from pipeline.numerics.logistic.logistic_sites import ep_posterior
from pipeline.numerics.logistic.trait_scores import (
    count_points,
    sum_node_curvature,
    sum_node_scores,
    sum_score_products,
    sum_trait_scores,
)
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Values = Mapping[str, NDArray[Any]]

MAX_ROWS = 20_000
MAX_PARAMETERS = 3000
"""Their information is a matrix; of more there are no standard errors."""
MAX_ITEMS = 1000
"""Of more, pairs and sum scores are not compared with the model."""
_MAX_WORK = 2e10  # entries of matrices to add up
_MIN_ROWS_PER_PARAMETER = {"louis": 5, "crossproduct": 100, "sandwich": 100}  # rows a parameter


def choose_error_form(errors: str, q: int) -> str:
    """Give the form of standard errors that can be had: beyond 3 components products alone."""
    return errors if q <= MAX_COMPONENTS else "crossproduct"


def choose_row_share(n_rows: int, shape: tuple[int, int], errors: str) -> float:
    """Give the share of rows that scores are summed over.

    Curvature is known of all rows, so that few serve what is taken from it, unlike a sum of
    products of scores alone.
    """
    n_features, q = shape
    n_parameters = n_features * (q + 1)
    points = count_points(n_features, q) if q <= MAX_COMPONENTS else 1
    most = min(_MAX_WORK / (points * n_parameters**2), MAX_ROWS)
    least = _MIN_ROWS_PER_PARAMETER[choose_error_form(errors, q)] * n_parameters
    return min(1.0, max(most, least) / max(n_rows, 1))


def summarize_scores(
    params: LatentTraitParams, share: float, block: BinaryBlock, rng: RowRandom
) -> Sums:
    """Sum what standard errors are made of over a share of rows."""
    X, observed, n_rows = _select_rows(share, block, rng)
    weights, offsets = params.weights, params.offsets
    values: dict[str, NDArray[Any]] = {"rows_informing": np.array(n_rows)}
    if params.free_parameters.size > MAX_PARAMETERS:
        return Sums(block.n_samples, 0.0, values)
    if weights.shape[1] > MAX_COMPONENTS:
        by_sites = ep_posterior(X, observed, weights, offsets)
        values["products"] = sum_score_products(X, observed, weights, offsets, by_sites)
    else:
        posterior = posterior_by_quadrature(X, observed, params.items)
        values |= sum_trait_scores(X, observed, weights, offsets, posterior)._asdict()
    return Sums(block.n_samples, 0.0, values)


def _select_rows(
    share: float, block: BinaryBlock, rng: RowRandom
) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None, int]:
    """Choose rows by their keys."""
    X, observed = block.unpack_values(), block.unpack_mask()
    at = np.flatnonzero(rng.stream("information").uniform(block.rows, 1)[:, 0] < share)
    return X[at], None if observed is None else observed[at], len(at)


def summarize_information(
    params: LatentTraitParams,
    nodes: Nodes,
    share: float,
    block: BinaryBlock,
    rng: RowRandom,
) -> Sums:
    """Sum what `errors` and `compute_fit_statistics` are made of, with `share` of rows for scores."""
    X, observed = block.unpack_values(), block.unpack_mask()
    weights, offsets = params.weights, params.offsets
    mass, log_likelihood = node_mass(X, observed, weights, offsets, nodes)
    values: dict[str, NDArray[Any]] = {
        "curvature": sum_node_curvature(mass, weights, offsets, nodes)
    }
    if len(offsets) <= MAX_ITEMS:
        values |= _count_complete_rows(block, X, observed)
    X, observed, _ = _select_rows(share, block, rng)
    posterior = node_posterior(X, observed, weights, offsets, nodes)
    values |= _sum_residuals(params, X, observed, posterior)
    if params.free_parameters.size <= MAX_PARAMETERS:
        values |= _sum_scores(params, nodes, X, observed, posterior)
    return Sums(block.n_samples, log_likelihood, values)


def _sum_scores(
    params: LatentTraitParams,
    nodes: Nodes,
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    posterior: NodePosterior,
) -> Values:
    """Sum scores on the nodes, at a fraction of the work, of rows that have all their values."""
    weights, offsets = params.weights, params.offsets
    if observed is None:
        return sum_node_scores(X, weights, offsets, nodes)._asdict()
    whole = observed.all(axis=1)
    found = sum_node_scores(X[whole], weights, offsets, nodes)
    left = NodePosterior(*(moments[~whole] for moments in posterior))
    more = sum_trait_scores(X[~whole], observed[~whole], weights, offsets, left)
    return {"spread": found.spread + more.spread, "products": found.products + more.products}


def _sum_residuals(
    params: LatentTraitParams,
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    posterior: NodePosterior,
) -> Values:
    """Sum moments of the rows' codes, and squared residuals at them."""
    mean = posterior.mean
    P = scipy.special.expit(mean @ params.weights.T + params.offsets)
    variance = np.maximum(P * (1 - P), np.finfo(float).tiny)
    seen = np.ones(X.shape) if observed is None else observed.astype(np.float64)
    squares = seen * (X - P) ** 2
    return {
        "rows_informing": np.array(len(X)),
        "codes": mean.sum(axis=0),
        "codes_squared": mean.T @ mean,
        "codes_variance": posterior.covariance.sum(axis=0),
        "observed": seen.sum(axis=0),
        "squares": squares.sum(axis=0),
        "variances": (seen * variance).sum(axis=0),
        "squares_standardized": (squares / variance).sum(axis=0),
    }


def _count_complete_rows(
    block: BinaryBlock, X: NDArray[np.uint8], observed: NDArray[np.uint8] | None
) -> Values:
    """Count pairs of ones, and ones by sum score, in rows that have all their values."""
    words = block.words
    if observed is not None:
        X = np.ascontiguousarray(X[observed.all(axis=1)])
        words = pack_rows(X)
    n_features = block.n_features
    scores = X.sum(axis=1, dtype=np.int64)
    order = np.argsort(scores.astype(np.uint16), kind="stable")  # short integers sort by digits
    rows = np.bincount(scores, minlength=n_features + 1)
    ones = np.zeros((n_features + 1, n_features), np.int64)
    if len(X):
        found = np.flatnonzero(rows)
        starts = (np.cumsum(rows) - rows)[found]
        ones[found] = np.add.reduceat(X[order], starts, axis=0, dtype=np.int64)
    return {"both": symmetric_joint_counts(words), "score_rows": rows, "score_ones": ones}


def count_parameters(n_features: int, q: int, equal_slopes: bool) -> int:
    """Count what data tell: rotations of the components are none of it."""
    if equal_slopes:
        return n_features + 1
    return n_features * (q + 1) - math.comb(q, 2)
