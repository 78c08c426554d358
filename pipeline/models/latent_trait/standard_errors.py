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

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.models.latent_trait.forms import Matrix
from pipeline.models.latent_trait.wide_errors import (
    ItemInformation,
    list_axis_constraints,
    list_shared_directions,
)
from pipeline.numerics.bits.kernels import add_joint_counts
from pipeline.numerics.information import invert_constrained_information, invert_information
from pipeline.numerics.logistic.categories.curves import LevelItems
from pipeline.numerics.logistic.categories.fit import sum_residuals
from pipeline.numerics.logistic.categories.scores import (
    RowRegression,
    choose_point_rule,
    count_score_vectors,
    join_blocks,
    leave_out_saturated,
    sum_block_scores,
    sum_scores,
)
from pipeline.numerics.logistic.information import find_reversed_items
from pipeline.numerics.logistic.latent_nodes import (
    MAX_COMPONENTS,
    Nodes,
    RowPosterior,
    node_posterior,
)
from pipeline.numerics.logistic.lattice_nodes import lattice_e_step, list_lattice_nodes
from pipeline.numerics.logistic.lattice_posterior import posterior_on_lattice
from pipeline.numerics.logistic.logistic_sites import sum_ep_score_products
from pipeline.random import RowRandom
from pipeline.statistics.sums import ClusteredSums, Sums

Array = NDArray[np.float64]
Values = Mapping[str, NDArray[Any]]

MAX_ROWS = 20_000
MAX_PARAMETERS = 3000
"""With more parameters, the information matrix is too large; see `wide_errors`."""
MAX_ITEMS = 1000
"""With more items, pairs and sum scores are not compared with the model."""
_MAX_WORK = 2e10  # entries of matrices to add up
_MAX_ASYMPTOTE_WORK = 1e11
_MAX_LEVEL_WORK = 5e9
_MIN_ROWS_PER_PARAMETER = {"louis": 5, "crossproduct": 100, "sandwich": 100}


def choose_error_form(
    errors: str, shape: tuple[int, int], has_sampling_weights: bool = False
) -> str:
    """Return the form of standard errors of weights of a shape, (n_features, q).

    Above 3 components, only `crossproduct` is possible; with many items, only `louis`. Only the
    sandwich is right with sampling weights: there are none in these two cases.
    """
    n_features, q = shape
    if has_sampling_weights:
        is_possible = q <= MAX_COMPONENTS and n_features * (q + 1) <= MAX_PARAMETERS
        return "sandwich" if is_possible else "none"
    if q > MAX_COMPONENTS:
        return "crossproduct"
    return "louis" if n_features * (q + 1) > MAX_PARAMETERS else errors


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


def estimate_information(params: LatentTraitParams, share: float, has_shared_nodes: bool) -> float:
    """Return how many nanoseconds longer than in an E-step a row takes in the pass for errors.

    `has_shared_nodes` states whether all rows may have the same nodes: with quadrature, and without
    missing values.
    """
    (n_features, q), n_parameters = params.weights.shape, params.free_parameters.size
    nodes = list_lattice_nodes(params.weights, params.offsets) if has_shared_nodes else None
    if nodes is not None and not is_wide(params):
        scores = 0.4 * len(nodes.points) * n_features + 0.3 * n_parameters**2
    elif q <= MAX_COMPONENTS:
        scores = 30.0 * len(choose_point_rule(n_features, q).points) * n_features
        if not is_wide(params):
            scores += 0.03 * count_score_vectors(n_features, q) * n_parameters**2
    else:
        scores = 60.0 * n_features + 0.05 * n_parameters**2
    return float(share * scores + 80 * n_features)


def summarize_regression_scores(
    params: LatentTraitParams,
    share: float,
    block: BinaryBlock,
    rng: RowRandom,
    regression: RowRegression,
    jacobian: Matrix,
) -> Sums:
    """Compute the sums for standard errors of rows with covariates over a share of the rows.

    The objective is 0, and `jacobian` as for `sum_row_scores`.
    """
    sample = select_rows(share, block, rng, regression)
    assert sample.regression is not None
    means = sample.regression.means
    posterior = posterior_on_lattice(sample.X, sample.observed, params.items, means)
    sample = sample._replace(regression=leave_out_saturated(sample.regression, posterior))
    return sum_row_scores(params, block, 0.0, {}, sample, posterior, jacobian)


def summarize_scores(
    params: LatentTraitParams, share: float, block: BinaryBlock, rng: RowRandom
) -> Sums:
    """Compute the sums for standard errors over a share of the rows, without nodes."""
    sample = select_rows(share, block, rng)
    values: dict[str, NDArray[Any]] = {"weight_informing": np.array(sample.weight)}
    if params.weights.shape[1] <= MAX_COMPONENTS:
        posterior = posterior_on_lattice(sample.X, sample.observed, params.items)
        return sum_row_scores(params, block, 0.0, values, sample, posterior)
    if not is_wide(params):
        values["products"] = sum_ep_score_products(
            sample.X, sample.observed, params.weights, params.offsets, sample.row_weights
        )
    return Sums.from_block(block, 0.0, values)


def is_wide(params: LatentTraitParams) -> bool:
    """Return whether the information matrix of all parameters is too large."""
    n_asymptotes = 0 if params.asymptotes is None else len(params.asymptotes)
    n_parameters = params.free_parameters.size + n_asymptotes * len(params.offsets)
    return bool(n_parameters > MAX_PARAMETERS)


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


def select_rows(
    share: float, block: BinaryBlock, rng: RowRandom, regression: RowRegression | None = None
) -> ScoredRows:
    """Return a random share of the rows."""
    sample = ScoredRows(
        block.unpack_values(),
        block.unpack_mask(),
        block.row_weights,
        block.has_sampling_weights,
        regression,
    )
    return sample.take_rows(draw_rows(share, block, rng))


def draw_rows(share: float, block: BinaryBlock, rng: RowRandom) -> NDArray[np.bool_]:
    """Draw which rows are in the sample for standard errors, (n_samples,)."""
    is_taken: NDArray[np.bool_] = rng.stream("information").uniform(block.rows, 1)[:, 0] < share
    return is_taken


def summarize_information(
    params: LatentTraitParams,
    nodes: Nodes | None,
    share: float,
    block: BinaryBlock,
    rng: RowRandom,
    nodes_per_axis: int | None = None,
    jacobian: Matrix | None = None,
) -> Sums:
    """Compute the sums for fit statistics, and those for standard errors over a share of the rows.

    Without shared nodes, each row has its own, `nodes_per_axis` along each axis. `jacobian` is as
    for `sum_row_scores`.
    """
    X, observed = block.unpack_values(), block.unpack_mask()
    weights, offsets = params.weights, params.offsets
    items = LevelItems.from_binary(weights, offsets, params.asymptotes)
    values: dict[str, NDArray[Any]] = {}
    if nodes is None:
        log_likelihood = lattice_e_step(
            X, observed, weights, offsets, block.row_weights, nodes_per_axis=nodes_per_axis
        ).log_likelihood
        nodes = list_lattice_nodes(weights, offsets)
    else:
        by_row = node_posterior(X, observed, items, nodes).log_likelihood
        row_weights = block.row_weights
        log_likelihood = float((by_row if row_weights is None else row_weights * by_row).sum())
    if len(offsets) <= MAX_ITEMS and not block.has_sampling_weights:
        values |= count_complete_rows(block, X, observed, find_reversed_items(weights))
    sample = select_rows(share, block, rng)
    posterior: RowPosterior
    if nodes is None or (is_wide(params) and params.asymptotes is None):
        posterior, nodes = posterior_on_lattice(sample.X, sample.observed, params.items), None
    else:
        posterior = node_posterior(sample.X, sample.observed, items, nodes)
    return sum_row_scores(params, block, log_likelihood, values, sample, posterior, jacobian, nodes)


def sum_row_scores(
    params: LatentTraitParams,
    block: BinaryBlock,
    log_likelihood: float,
    values: Values,
    sample: ScoredRows,
    posterior: RowPosterior,
    jacobian: Matrix | None = None,
    nodes: Nodes | None = None,
) -> Sums:
    """Return the sums of a block with residuals and scores of a sample of its rows.

    The scores are about what forms of binary items and Θ have the derivatives `jacobian` by; None
    for the forms themselves.
    """
    items = LevelItems.from_binary(*params.items, params.asymptotes)
    rows = sample.X, sample.observed, items, posterior
    values = {**values, **sum_residuals(*rows, sample.row_weights)}
    if is_wide(params):
        if params.asymptotes is None:
            V = list_shared_directions(params.weights).scales.reshape(items.to_forms().size, -1)
            values |= sum_block_scores(*rows, V, sample.row_weights)._asdict()
        return Sums.from_block(block, log_likelihood, values)
    if jacobian is None:
        jacobian = scipy.sparse.eye_array(items.to_forms().size, format="csr")
    sums = Sums.from_block(block, log_likelihood, values)
    return add_scores(sums, block, sample, items, posterior, jacobian, nodes)


def add_scores(
    sums: Sums,
    block: BinaryBlock,
    sample: ScoredRows,
    items: LevelItems,
    posterior: RowPosterior,
    jacobian: Matrix,
    nodes: Nodes | None = None,
    is_own: NDArray[np.bool_] | None = None,
) -> Sums:
    """Return the sums of a block with the scores of a sample of its rows, see `sum_scores`.

    If rows were drawn in clusters, these are all rows, and the scores of each cluster belong to it.
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
        has_sampling_weights=sample.has_sampling_weights,
        clusters=places,
        regression=sample.regression,
    )
    names = ["spread", "products", "curvature"]
    names += ["weighted_products"] * sample.has_sampling_weights
    values = {**sums.values, **{name: getattr(found, name) for name in names}}
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

    Sum scores count the features in `is_reversed`, (n_features,), in reverse.
    """
    if observed is not None:
        is_complete = observed.all(axis=1)
        block, X = block.take_rows(np.flatnonzero(is_complete)), X[is_complete]
    n_features, weights = block.n_features, block.weights
    both = np.zeros((n_features, n_features), np.int64)
    add_joint_counts(block.words, block.words, both, block.split_weights())
    scores = (X ^ is_reversed).sum(axis=1, dtype=np.int64)
    order = np.argsort(scores.astype(np.uint16), kind="stable")  # a fast radix sort for uint16
    rows = np.bincount(scores, minlength=n_features + 1)
    score_rows, ones = rows, np.zeros((n_features + 1, n_features), np.int64)
    values = X[order] if weights is None else X[order] * weights[order, None]
    if weights is not None:
        score_rows = np.zeros(n_features + 1, np.int64)
        np.add.at(score_rows, scores, weights)
    if len(X):
        present = np.flatnonzero(rows)
        starts = (np.cumsum(rows) - rows)[present]
        ones[present] = np.add.reduceat(values, starts, axis=0, dtype=np.int64)
    return {"both": both, "score_rows": score_rows, "score_ones": ones}


def count_parameters(n_features: int, q: int, equal_slopes: bool) -> int:
    """Count the identifiable parameters, that is, without rotations of the components."""
    if equal_slopes:
        return n_features + 1
    return n_features * (q + 1) - math.comb(q, 2)


class ItemErrors(NamedTuple):
    """Covariance of each item's weights and offset, (n_features, q + 1, q + 1).

    It is NaN for fixed items, and for items whose information is singular, which are listed in
    `unknown`.
    """

    covariance: Array
    unknown: NDArray[np.intp]

    @property
    def weights(self) -> Array:
        """Standard errors of weights, (n_features, q)."""
        return np.sqrt(np.diagonal(self.covariance, axis1=1, axis2=2))[:, :-1]

    @property
    def offsets(self) -> Array:
        """Standard errors of offsets, (n_features,)."""
        return np.sqrt(self.covariance[:, -1, -1])

    def difficulties(self, slopes: Array, offsets: Array) -> Array:
        """Return standard errors of −b / w for one component by the delta method, (n_features,)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            gradient = np.stack([offsets / slopes**2, -1 / slopes], axis=1)
        variance = np.einsum("ij,ijk,ik->i", gradient, self.covariance, gradient)
        return np.asarray(np.sqrt(variance))


def standard_errors(
    weights: Array,
    sums: Mapping[str, NDArray[Any]],
    form: str,
    prior_precision: float,
    fixed: NDArray[np.bool_],
    equal_slopes: bool,
) -> ItemErrors:
    """Invert the information of the form `louis`, `sandwich` or `crossproduct`.

    Parameters
    ----------
    weights
        Weights on their principal axes, (n_features, q).
    sums
        Sums over all rows: `curvature`, `spread`, `products` of `RowScoreSums`.
    prior_precision, equal_slopes
        As in the settings; the precision adds to the information.
    fixed
        Features whose parameters were not estimated, or diverge, (n_features,).
    """
    n_features, q = weights.shape
    prior = np.tile(np.append(np.full(q, prior_precision), 0.0), n_features)
    if "item_variance" in sums:
        return _invert_by_item(weights, sums, prior_precision, fixed, equal_slopes)
    information = _compute_information(sums, form) + np.diag(prior)
    covariance, unknown = None, fixed
    if not equal_slopes and not fixed.all():
        covariance = _invert_regular(information, weights, fixed)
    if covariance is None:
        inverse = invert_information(information, _free_directions(weights, fixed, equal_slopes))
        covariance = inverse.covariance
        unknown = fixed | inverse.find_unidentified((n_features, q + 1))
    if form == "sandwich":
        products = sums.get("weighted_products", sums["products"])
        covariance = covariance @ products @ covariance
    blocks = covariance.reshape(n_features, q + 1, n_features, q + 1)
    item_covariance = blocks[np.arange(n_features), :, np.arange(n_features)]
    item_covariance[unknown] = np.nan
    return ItemErrors(item_covariance, np.flatnonzero(unknown & ~fixed))


def _invert_by_item(
    weights: Array,
    sums: Mapping[str, NDArray[Any]],
    prior_precision: float,
    fixed: NDArray[np.bool_],
    equal_slopes: bool,
) -> ItemErrors:
    """Invert the information of each item, with the directions that all items share."""
    n_features, q = weights.shape
    n = n_features * (q + 1)
    places, prior = np.arange(n).reshape(n_features, q + 1), np.diag([*[prior_precision] * q, 0.0])
    curvature, variance = (
        sums[name].reshape(n_features, q + 1, q + 1) for name in ("curvature", "item_variance")
    )
    known, own = (
        join_blocks([blocks + prior], [places], n) for blocks in (curvature, curvature - variance)
    )
    J = scipy.sparse.eye_array(n, format="csr")
    if equal_slopes:  # the slope is the first parameter
        columns = np.column_stack([np.zeros(n_features, np.int64), 1 + np.arange(n_features)])
        J = scipy.sparse.csr_array((np.ones(n), (np.arange(n), columns.ravel())))
    scales, rotations = (part.reshape(n, -1) for part in list_shared_directions(weights))
    shared = scales.T @ (known @ scales) - sums["shared_variance"]
    information = ItemInformation(
        (J.T @ known @ J).diagonal(),
        (J.T @ own @ J).tocsr(),
        (J.T @ np.column_stack([scales, rotations])) / J.sum(axis=0)[:, None],
        np.pad(shared, (0, rotations.shape[1])),  # there is none about rotations
        J.sum(axis=0) > 1,
        np.asarray(list_axis_constraints(weights).reshape(-1, n) @ J),
    )
    is_free = J[np.flatnonzero(np.repeat(~fixed, q + 1))].sum(axis=0) > 0
    covariance = np.full((n_features, q + 1, q + 1), np.nan)
    if not is_free.any():
        return ItemErrors(covariance, np.zeros(0, np.intp))
    found, is_unknown = information.take(is_free).invert()
    free = J[:, np.flatnonzero(is_free)]
    has_errors = ~fixed & ~(free @ is_unknown).reshape(n_features, -1).any(axis=1)
    covariance[has_errors] = found.transform(free).take_blocks(places[has_errors])
    return ItemErrors(covariance, np.flatnonzero(~has_errors & ~fixed))


def _compute_information(sums: Mapping[str, NDArray[Any]], form: str) -> Array:
    products: Array = sums["products"]
    if form == "crossproduct":
        return products
    observed: Array = sums["curvature"] - sums["spread"] + products
    return observed


def _invert_regular(information: Array, weights: Array, fixed: NDArray[np.bool_]) -> Array | None:
    """Invert the information of the free parameters; None if it is nearly singular."""
    free = np.repeat(~fixed, weights.shape[1] + 1)
    constraints = list_axis_constraints(weights).reshape(-1, len(free))[:, free]
    inverse = invert_constrained_information(information[np.ix_(free, free)], constraints)
    if inverse is None:
        return None
    covariance = np.zeros_like(information)
    covariance[np.ix_(free, free)] = inverse
    return covariance


def _free_directions(weights: Array, fixed: NDArray[np.bool_], equal_slopes: bool) -> Array:
    """Return a basis of the directions in which the parameters are free, (p, n_directions).

    Fixed features have none, equal slopes share one, and the weights stay on principal axes.
    """
    n_features, q = weights.shape
    free = np.repeat(~fixed, q + 1)
    if equal_slopes:
        offsets = np.zeros((n_features, q + 1, n_features))
        offsets[np.arange(n_features), q, np.arange(n_features)] = 1.0
        slope = np.tile([1.0, 0.0], n_features)[:, None]
        basis = np.hstack([slope, offsets.reshape(-1, n_features)])
        return basis[:, (basis[free] != 0).any(axis=0)] * free[:, None]
    basis = np.eye(len(free))[:, free]
    if q == 1:
        return basis
    constraints = list_axis_constraints(weights).reshape(-1, len(free))[:, free]
    principal: Array = basis @ scipy.linalg.null_space(constraints)
    return principal
