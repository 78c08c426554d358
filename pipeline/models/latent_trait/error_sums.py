"""Standard errors of the latent-trait model, and the pass after a fit that they need.

`louis` is the inverse of the observed information (T. A. Louis, JRSS B 44 (1982)), `crossproduct`
the inverse of the products of scores, and `sandwich` combines both (H. White, Econometrica 50
(1982)), which is also right if the model is wrong. With two or more components, the weights are on
their principal axes, Σ_i w_ia w_ib = 0, and the errors are those under this constraint (R. I.
Jennrich, Psychometrika 39 (1974)).

With quadrature, the likelihood is summed over all rows. Scores, curvature and residuals cost more
and are summed over at most `MAX_ROWS` rows, a random sample if there are more. All of them are of
the same rows: the information in a direction may be a small difference of two large sums. Pairs and
sum scores are counted in the rows without missing values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.fit_design import MAX_PARAMETERS
from pipeline.models.latent_trait.forms import Matrix
from pipeline.models.latent_trait.params import LatentTraitParams
from pipeline.numerics.bits.kernels import add_joint_counts
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.scores import (
    SOME_FORMS,
    RowRegression,
    count_points,
    count_score_vectors,
    sum_scores,
)
from pipeline.numerics.logistic.latent_nodes import MAX_COMPONENTS, Nodes, RowPosterior
from pipeline.numerics.logistic.lattice_nodes import list_lattice_nodes
from pipeline.random import RowRandom
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]
Values = Mapping[str, NDArray[Any]]

MAX_ROWS = 20_000
MAX_ITEMS = 1000
"""With more items, pairs and sum scores are not compared with the model."""
FIXED_NANOSECONDS = 2e7
"""Time of the sparse matrices of a block, whatever its number of rows."""
_MAX_WORK = 2e10  # entries of matrices to add up
_MAX_ASYMPTOTE_WORK = 1e11
_MAX_LEVEL_WORK = 5e9
_MIN_ROWS_PER_PARAMETER = {"louis": 5, "crossproduct": 100, "sandwich": 100}


def choose_row_share(
    n_rows: int, shape: tuple[int, int], form: str, has_sampling_weights: bool = False
) -> float:
    """Return the share of rows over which scores are summed for a form of standard errors.

    `louis` needs fewer rows than the products of scores, which determine a matrix of full rank only
    if rows are many.
    """
    n_features, q = shape
    n_parameters = n_features * (q + 1)
    if n_parameters > MAX_PARAMETERS:
        return min(1.0, MAX_ROWS / max(n_rows, 1))
    if has_sampling_weights:  # scores are summed by cluster, and weights may differ much
        return 1.0
    n_vectors = count_score_vectors(n_features, q) if q <= MAX_COMPONENTS else 1
    affordable = min(_MAX_WORK / (n_vectors * n_parameters**2), MAX_ROWS)
    required = _MIN_ROWS_PER_PARAMETER.get(form, 0) * n_parameters
    return min(1.0, max(affordable, required) / max(n_rows, 1))


def choose_asymptote_row_share(n_rows: int, n_features: int, n_nodes: int, form: str) -> float:
    """Return the share of rows over which scores of items with asymptotes are summed.

    A small sample would not do: asymptotes are in directions that the data hardly determine.
    """
    affordable = _MAX_ASYMPTOTE_WORK / (n_nodes * n_features**2)
    required = _MIN_ROWS_PER_PARAMETER.get(form, 0) * 4 * n_features
    return min(1.0, max(affordable, required) / max(n_rows, 1))


def choose_level_row_share(n_rows: int, n_free: int, n_products: int, form: str) -> float:
    """Return the share of rows over which scores of items with several levels are summed.

    `n_products` is the number of multiplications per row.
    """
    affordable = _MAX_LEVEL_WORK / n_products
    required = _MIN_ROWS_PER_PARAMETER.get(form, 0) * n_free
    return min(1.0, max(affordable, required) / max(n_rows, 1))


def estimate_information(
    params: LatentTraitParams, share: float, has_shared_nodes: bool, is_wide: bool
) -> float:
    """Return how many nanoseconds longer than in an E-step a row takes in the pass for errors.

    `has_shared_nodes` states whether all rows may have the same nodes: with quadrature, and without
    missing values. If the fit `is_wide`, errors are by item.
    """
    (n_features, q), n_parameters = params.weights.shape, params.free_parameters.size
    nodes = list_lattice_nodes(params.weights, params.offsets) if has_shared_nodes else None
    if has_shared_nodes and not is_wide and n_features > SOME_FORMS and q <= MAX_COMPONENTS:
        scores = 15.0 * n_features + 0.02 * q * (q + 1) * n_features**2
    elif nodes is not None and not is_wide:
        scores = 0.4 * len(nodes.points) * n_features + 0.3 * n_parameters**2
    elif q <= MAX_COMPONENTS or is_wide:
        scores = 30.0 * count_points(n_features, q) * n_features
        if not is_wide:
            scores += 0.03 * count_score_vectors(n_features, q) * n_parameters**2
    else:
        scores = 60.0 * n_features + 0.05 * n_parameters**2
    return float(share * scores + 12 * n_features)


class ScoredRows(NamedTuple):
    """Some rows of a block: values and mask, (n_rows, n_features), and weights, (n_rows,)."""

    X: NDArray[np.uint8]
    observed: NDArray[np.uint8] | None
    row_weights: Array | None
    has_sampling_weights: bool
    regression: RowRegression | None = None

    @property
    def weight(self) -> float:
        """Sum of the weights."""
        return float(len(self.X) if self.row_weights is None else self.row_weights.sum())

    def take_rows(self, is_taken: NDArray[np.bool_]) -> ScoredRows:
        """Return the rows of a mask, (n_rows,)."""
        return self._replace(
            X=self.X[is_taken],
            observed=None if self.observed is None else self.observed[is_taken],
            row_weights=None if self.row_weights is None else self.row_weights[is_taken],
            regression=None if self.regression is None else self.regression.take_rows(is_taken),
        )


def draw_rows(share: float, block: BinaryBlock, rng: RowRandom) -> NDArray[np.bool_]:
    """Draw which rows are in the sample for standard errors, (n_samples,)."""
    is_taken: NDArray[np.bool_] = rng.stream("information").uniform(block.rows, 1)[:, 0] < share
    return is_taken


def add_scores(
    sums: Sums,
    block: BinaryBlock,
    sample: ScoredRows,
    items: LevelItems,
    posterior: RowPosterior,
    jacobian: Matrix,
    nodes: Nodes | None = None,
    is_own: NDArray[np.bool_] | None = None,
    names: Sequence[str] = ("products",),
) -> Sums:
    """Return the sums of a block with the scores of a sample of its rows, see `sum_scores`.

    If rows were drawn in clusters, these are all rows, and the scores of each cluster belong to it.
    `names` are those of further sums: `products` of scores, and the `curvature` of complete data.
    """
    clusters, places = None, None
    if block.clusters is not None and sample.row_weights is not None:
        clusters, places = np.unique(block.clusters, return_inverse=True)
    found = sum_scores(
        sample.X,
        sample.observed,
        items,
        posterior,
        jacobian,
        nodes=nodes,
        is_own=is_own,
        row_weights=sample.row_weights,
        has_products="products" in names,
        has_sampling_weights=sample.has_sampling_weights,
        clusters=places,
        regression=sample.regression,
    )
    values = {**sums.values, "information": found.curvature - found.covariance}
    names = [*names, *["weighted_products"] * sample.has_sampling_weights]
    values |= {name: getattr(found, name) for name in names}
    sums = replace(sums, values=values)
    if clusters is None:
        return sums
    return ClusteredSums.from_sums(sums, clusters, found.cluster_scores)


def count_complete_rows(
    block: BinaryBlock,
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None,
    is_reversed: NDArray[np.bool_],
) -> Values:
    """Count pairs of ones, and ones by sum score, in complete rows times their weights.

    Sum scores count the planes in `is_reversed`, (n_planes,), in reverse. There are no counts with
    too many features, or with sampling weights.
    """
    if block.n_features > MAX_ITEMS or block.has_sampling_weights:
        return {}
    if observed is not None:
        is_complete = observed.all(axis=1)
        block, X = block.take_rows(np.flatnonzero(is_complete)), X[is_complete]
    n_features, weights = block.n_features, block.weights
    both = np.zeros((n_features, n_features), np.int64)
    add_joint_counts(block.words, block.words, both, block.split_weights())
    score_rows = np.zeros(n_features + 1, np.int64)
    ones = np.zeros((n_features + 1, n_features), np.int64)
    own_weights = np.empty(0, np.int64) if weights is None else weights
    add_rows_by_score(X, is_reversed.view(np.uint8), own_weights, score_rows, ones)
    return {"both": both, "score_rows": score_rows, "score_ones": ones}


@njit(nogil=True, cache=True)
def add_rows_by_score(
    X: NDArray[np.uint8],
    is_reversed: NDArray[np.uint8],
    weights: NDArray[np.int64],
    score_rows: NDArray[np.int64],
    score_ones: NDArray[np.int64],
) -> None:
    """Add the weights of rows, and those times their values, to those of their sum scores.

    Every weight is 1 if there are none.
    """
    for n in range(len(X)):
        row, score = X[n], 0
        for i in range(len(row)):
            score += 1 if row[i] != is_reversed[i] else 0
        weight, ones = weights[n] if len(weights) > 0 else 1, score_ones[score]
        score_rows[score] += weight
        for i in range(len(row)):
            ones[i] += weight * row[i]
