"""Scores and information of items with several levels, summed over rows on shared nodes.

The weights and offsets of all planes, v, are J φ + v₀ with free parameters φ. Given x, the score of
a row in φ is linear in the indicators c_n of its levels: s_n(x) = D(x)ᵀ c_n, where the row of D(x)
for level c of item i is Σ_j ∂ log P_ic / ∂η_ij (x̂ᵀ J_ij) with x̂ = (x, 1). So

    Σ_n E[s sᵀ | t_n] = Σ_l D_lᵀ (Σ_n R_nl c_n c_nᵀ) D_l,

with the responsibilities R_nl. A row costs n_levels² multiplications per node. With many levels,
the covariance in E[s sᵀ] = s_n s_nᵀ + Cov[s] is on points of each row, as in `trait_scores`, which
explains the information (T. A. Louis).

Continuous items have two forms each, see `gaussian_items`. If there are any, the covariance is on
points of each row too, because their scores are not linear in indicators.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.asymptotes import (
    differentiate_curves,
    sum_expected_curvature,
    sum_item_scores,
)
from pipeline.numerics.logistic.asymptotes import sum_observed_curvature as sum_observed_asymptotes
from pipeline.numerics.logistic.categories.curves import (
    Answers,
    LevelItems,
    compute_expected_curvature,
    compute_log_probabilities,
    count_item_levels,
    count_levels_at_nodes,
    differentiate_levels,
    iter_alike,
    sum_form_scores,
    sum_observed_curvature,
    tabulate_levels,
)
from pipeline.numerics.logistic.categories.gaussian_items import (
    GaussianSums,
    sum_gaussian_curvature,
    sum_gaussian_gradient,
    sum_gaussian_moments,
)
from pipeline.numerics.logistic.categories.row_posteriors import (
    LevelPosterior,
    OwnPoints,
    RowAnswers,
    condition_on_numbers,
    differentiate_rows,
    find_level_rows,
    iter_own_points,
    split_answers,
    take_rows,
)
from pipeline.numerics.logistic.latent_nodes import (
    Nodes,
    gauss_hermite,
    iter_curve_responsibilities,
)
from pipeline.numerics.logistic.trait_scores import (
    BlockScores,
    HasMoments,
    RowRegression,
    choose_point_rule,
    choose_polynomials,
    compute_point_shares,
    count_score_vectors,
    deviate_scores,
    place_points,
    score_regression,
)

Bits = NDArray[np.uint8]
Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

_MAX_ROWS, _MAX_SHARES = 8192, 2**22  # rows, and their responsibilities, multiplied at a time
_MAX_NODE_LEVELS = 150  # with more levels, rows have points of their own
_POINTS_PER_AXIS = {1: 15, 2: 9, 3: 7}  # by the number of components
_PRODUCTS_PER_PROBABILITY = 400  # that take as long as a probability at a point of a row
_BATCH_ENTRIES = 2**19  # derivatives of rows at their points: 4 MiB


def extend_points(points: Floats) -> Floats:
    """Return x̂ = (x, 1), (n_nodes, q + 1)."""
    return np.column_stack([points, np.ones(len(points))])


class LevelSums(NamedTuple):
    """Sums over rows, with their responsibilities for nodes.

    Some rows have points of their own. Planes then have an expected log-likelihood that is
    quadratic in their forms v, v·s − ½ vᵀ C v, with the gradient of the true one at the forms of
    the pass, and at least its curvature.

    Attributes
    ----------
    ones, mass
        Expected numbers of ones and of observed values of all planes, (n_planes, n_nodes) each.
    slopes, curvatures
        s, (n_planes, q + 1), and C, (n_planes, q + 1, q + 1), of rows with points of their own.
    number_codes, number_products, squares
        The fields of `GaussianSums` of the continuous items.
    """

    ones: Floats
    mass: Floats
    slopes: Floats
    curvatures: Floats
    number_codes: Floats
    number_products: Floats
    squares: Floats

    @property
    def gaussians(self) -> GaussianSums:
        """The sums of the continuous items."""
        return GaussianSums(self.number_codes, self.number_products, self.squares)

    def transform(self, matrix: Floats) -> LevelSums:
        """Return the sums for A x̂ instead of x̂ = (x, 1), with A (q + 1, q + 1)."""
        return LevelSums(
            ones=self.ones,
            mass=self.mass,
            slopes=self.slopes @ matrix.T,
            curvatures=np.asarray(matrix @ self.curvatures @ matrix.T),
            number_codes=self.number_codes @ matrix.T,
            number_products=np.asarray(matrix @ self.number_products @ matrix.T),
            squares=self.squares,
        )


def sum_form_gradient(items: LevelItems, points: Floats, sums: LevelSums) -> Floats:
    """Return the gradient of the expected log-likelihood in v, (n_forms (q + 1),)."""
    eta = items.compute_forms(points)
    if items.asymptotes is not None:
        derivatives = differentiate_curves(eta, items.asymptotes.by_item)
        scores = sum_item_scores(points, sums.ones, sums.mass, derivatives)
        places = place_asymptotes(len(eta), points.shape[1])
        total = np.zeros(3 * len(eta) * (points.shape[1] + 1))
        total[places] = scores
        return total
    scores = np.empty_like(eta)
    for alike in iter_alike(items.n_planes):
        first = differentiate_levels(eta[alike.planes], items.is_cumulative)
        counts = count_levels_at_nodes(sums.ones, sums.mass, alike)
        scores[alike.planes] = sum_form_scores(counts, first)
    forms = np.column_stack([items.weights, items.offsets])
    own = sums.slopes - np.einsum("jab,jb->ja", sums.curvatures, forms)
    gradient = (scores @ extend_points(points) + own).reshape(-1)
    if items.gaussians is None:
        return np.asarray(gradient)
    of_numbers = sum_gaussian_gradient(items.gaussians, sums.gaussians)
    return np.asarray(np.concatenate([gradient, of_numbers]))


def sum_form_curvature(
    items: LevelItems, points: Floats, sums: LevelSums, is_expected: bool = False
) -> scipy.sparse.csc_array:
    """Return minus the second derivatives of the expected log-likelihood in v, sparse.

    With `is_expected`, they are their mean given x, the Fisher information.
    """
    if items.asymptotes is not None:
        return _sum_asymptote_curvature(items, points, sums, is_expected)
    n, size = len(items.offsets), items.weights.size + len(items.offsets)
    total: Any = scipy.sparse.csc_array((size, size))
    if n:
        own = (sums.curvatures, np.arange(n), np.arange(n + 1))
        total = scipy.sparse.bsr_array(own, shape=(size, size)).tocsc()
    if len(points):
        total = total + _sum_plane_curvature(items, points, sums.ones, sums.mass, is_expected)
    if items.gaussians is None:
        return scipy.sparse.csc_array(total)
    blocks = sum_gaussian_curvature(items.gaussians, sums.gaussians, is_expected)
    joined: scipy.sparse.csc_array = scipy.sparse.block_diag([total, *blocks], format="csc")
    return joined


def place_asymptotes(n_features: int, q: int) -> Indices:
    """Return the places in v of (w, b, logit g, logit s) of each item, (n_features, q + 3)."""
    own = place_forms(np.arange(n_features)[:, None], q + 1)
    logits = n_features + np.arange(2 * n_features).reshape(-1, 2)
    return np.column_stack([own, logits * (q + 1) + q])


def _sum_asymptote_curvature(
    items: LevelItems, points: Floats, sums: LevelSums, is_expected: bool
) -> scipy.sparse.csc_array:
    """Return `sum_form_curvature` of items with asymptotes."""
    assert items.asymptotes is not None
    eta, asymptotes = items.compute_forms(points), items.asymptotes.by_item
    derivatives = differentiate_curves(eta, asymptotes)
    if is_expected:
        blocks = sum_expected_curvature(points, sums.mass, derivatives)
    else:
        counts = sums.ones, sums.mass
        blocks = sum_observed_asymptotes(points, *counts, eta, asymptotes, derivatives)
    places = place_asymptotes(len(eta), points.shape[1])
    size, width = 3 * len(eta) * (points.shape[1] + 1), places.shape[1]
    rows, columns = np.repeat(places, width, axis=1), np.tile(places, width)
    entries = (blocks.ravel(), (rows.ravel(), columns.ravel()))
    return scipy.sparse.coo_array(entries, shape=(size, size)).tocsc()


def sum_shift_scores(items: LevelItems, points: Floats, sums: LevelSums) -> tuple[Floats, Floats]:
    """Return score and Fisher information if all offsets of an item change alike.

    Both are (n_features,), the second as if x were known.
    """
    width, n_features = points.shape[1] + 1, len(items.n_planes)
    owners = np.repeat(np.arange(n_features), items.n_planes)
    continuous = np.flatnonzero(items.n_planes == 0)
    forms = np.append(np.arange(len(owners)), len(owners) + 2 * np.arange(len(continuous)))
    n_forms = len(items.to_forms())
    places = (forms * width + width - 1, np.append(owners, continuous))
    shape = (n_forms * width, n_features)
    shifts = scipy.sparse.coo_array((np.ones(len(forms)), places), shape=shape).tocsc()
    curvature = sum_form_curvature(items, points, sums, is_expected=True)
    information = (shifts.T @ curvature @ shifts).diagonal()
    return shifts.T @ sum_form_gradient(items, points, sums), information


def _sum_plane_curvature(
    items: LevelItems, points: Floats, ones: Floats, mass: Floats, is_expected: bool = False
) -> scipy.sparse.csc_array:
    """Return the part of `sum_form_curvature` of planes, given counts at points."""
    values, rows, columns = [], [], []
    width, n_planes = points.shape[1] + 1, len(items.offsets)
    for planes, curvature in _iter_curvatures(items, points, ones, mass, is_expected):
        own = place_forms(planes, width)
        row = np.broadcast_to(own[:, :, None], curvature.shape)
        values.append(curvature.reshape(-1))
        rows.append(row.reshape(-1))
        columns.append(np.broadcast_to(own[:, None], curvature.shape).reshape(-1))
    shape = (n_planes * width,) * 2
    if not values:
        return scipy.sparse.csc_array(shape)
    places = (np.concatenate(rows), np.concatenate(columns))
    return scipy.sparse.coo_array((np.concatenate(values), places), shape=shape).tocsc()


def place_forms(forms: Indices, width: int) -> Indices:
    """Return the places of the weights and offsets of forms, (n, m), in v, (n, m width)."""
    return np.asarray((forms[:, :, None] * width + np.arange(width)).reshape(len(forms), -1))


def _iter_curvatures(
    items: LevelItems, points: Floats, ones: Floats, mass: Floats, is_expected: bool = False
) -> Iterator[tuple[Indices, Floats]]:
    """Yield planes of items, (n, m), and their curvatures, (n, m (q + 1), m (q + 1))."""
    eta, extended = items.compute_forms(points), extend_points(points)
    width = extended.shape[1]
    products = (extended[:, :, None] * extended[:, None]).reshape(len(points), width**2)
    for alike in iter_alike(items.n_planes):
        own = eta[alike.planes]
        if is_expected:
            log_p = compute_log_probabilities(own, items.is_cumulative)
            first = differentiate_levels(own, items.is_cumulative)
            n_values = mass[alike.planes[:, 0], None, None]
            curvature = compute_expected_curvature(log_p, first) * n_values
        else:
            counts = count_levels_at_nodes(ones, mass, alike)
            curvature = sum_observed_curvature(counts, own, items.is_cumulative)
        n, m = alike.planes.shape
        of_forms = (curvature @ products).reshape(n, m, m, width, width).swapaxes(2, 3)
        yield alike.planes, of_forms.reshape(n, m * width, m * width)


class LevelScores(NamedTuple):
    """Sums over rows in the free parameters.

    Attributes
    ----------
    spread, products, curvature
        Σ_n r_n E[s sᵀ], Σ_n r_n s_n s_nᵀ and the curvature of the expected complete log-likelihood,
        (n_free, n_free) each.
    weighted_products
        Σ_n r_n² s_n s_nᵀ, of the same shape.
    cluster_scores
        Σ r_n s_n of the rows of each cluster, (n_clusters, n_free); empty without clusters.
    """

    spread: Floats
    products: Floats
    curvature: Floats
    weighted_products: Floats
    cluster_scores: Floats


class _ScoreTable(NamedTuple):
    """D_l of all nodes as sparse matrices that have their entries at the same places.

    Attributes
    ----------
    values
        (n_nodes, n_entries).
    levels, parameters
        Row and column of each entry, (n_entries,).
    shape
        (n_levels, n_free).
    """

    values: Floats
    levels: Indices
    parameters: Indices
    shape: tuple[int, int]

    def get_node(self, node: int) -> scipy.sparse.csr_array:
        """Return D_l."""
        places = (self.levels, self.parameters)
        return scipy.sparse.csr_array((self.values[node], places), shape=self.shape)


def _tabulate_scores(
    items: LevelItems, nodes: Nodes, jacobian: scipy.sparse.csr_array
) -> _ScoreTable:
    eta, extended = items.compute_forms(nodes.points), extend_points(nodes.points)
    width = extended.shape[1]
    values, levels, parameters = [], [], []
    for alike in iter_alike(items.n_planes):
        first = differentiate_levels(eta[alike.planes], items.is_cumulative)
        for own_first, planes, own_levels in zip(first, alike.planes, alike.levels, strict=True):
            rows = (planes[:, None] * width + np.arange(width)).reshape(-1)
            own = jacobian[rows]
            used = np.unique(own.indices)
            if not len(used):
                continue
            dense = own[:, used].toarray().reshape(len(planes), width, len(used))
            table = np.einsum("cjl,la,jap->lcp", own_first, extended, dense, optimize=True)
            values.append(table.reshape(len(extended), -1))
            levels.append(np.repeat(own_levels, len(used)))
            parameters.append(np.tile(used, len(own_levels)))
    shape = (int(count_item_levels(items.n_planes).sum()), jacobian.shape[1])
    if not values:
        empty = np.zeros(0, np.int64)
        return _ScoreTable(np.zeros((len(extended), 0)), empty, empty, shape)
    return _ScoreTable(
        np.concatenate(values, axis=1), np.concatenate(levels), np.concatenate(parameters), shape
    )


def sum_level_scores(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    nodes: Nodes,
    posterior: LevelPosterior,
    jacobian: scipy.sparse.csr_array,
    row_weights: Floats | None = None,
    clusters: NDArray[np.intp] | None = None,
    regression: RowRegression | None = None,
) -> LevelScores:
    """Sum scores and information over rows.

    Parameters
    ----------
    X, observed
        As for `compute_row_posterior`.
    items, nodes
        The items, and nodes of the prior of the traits.
    posterior
        The posteriors of the rows on these nodes.
    jacobian
        J, (n_forms (q + 1), n_free), with the forms of planes and then of continuous items. With a
        regression, rows of Θ follow, (n_covariates q, n_free).
    row_weights
        Weight of each row in the sums, (n_samples,); None if every weight is 1.
    clusters
        Index of each row's cluster, (n_samples,), counted from 0; None without clusters.
    regression
        Priors of the rows, N(Θᵀz_n, I); None if all are N(0, I).
    """
    parts, q = _split_jacobian(jacobian, items), items.weights.shape[1]
    table, n_free = _tabulate_scores(items, nodes, parts.planes), jacobian.shape[1]
    is_linear = items.gaussians is None and regression is None  # in the indicators of levels
    has_own_points = table.shape[0] > _MAX_NODE_LEVELS or not is_linear
    spread, products, weighted_products = np.zeros((3, n_free, n_free))
    n_clusters = 0 if clusters is None else int(clusters.max(initial=-1)) + 1
    cluster_scores = np.zeros((n_clusters, n_free))
    counts = np.zeros((table.shape[0], len(nodes.points)))
    z_products = np.zeros((parts.theta.shape[0] // q,) * 2)
    of_planes = scipy.sparse.csc_array((parts.planes.shape[0],) * 2)
    numbers = None if items.gaussians is None else items.gaussians.make_empty_sums()
    row_means = None if regression is None else regression.means
    for part in _iter_plane_scores(X, observed, items, nodes, posterior, table, parts, row_means):
        check_cancelled()
        rows, shares = part.rows, part.shares
        answers = split_answers(X[rows], None if observed is None else observed[rows], items)
        moments, weights = posterior.take_rows(rows), np.ones(len(rows))
        own = None if regression is None else regression.take_rows(rows)
        if row_weights is not None:
            weights = row_weights[rows]
        scores = part.scores + _score_numbers(answers, items, moments, parts, own)
        weighted = scores * weights[:, None]
        own_products = weighted.T @ scores
        products += own_products
        weighted_products += weighted.T @ weighted
        if clusters is not None:
            np.add.at(cluster_scores, clusters[rows], weighted)
        if own is not None:
            z_products += (own.covariates * weights[:, None]).T @ own.covariates
        if numbers is not None:
            sums = sum_gaussian_moments(answers.values, answers.mask, *moments[:2], weights)
            numbers = GaussianSums(*map(np.add, numbers, sums))
        if shares is not None:
            shares = shares * weights[:, None]
            counts += answers.levels.T @ shares
        elif part.points is not None:
            of_planes = of_planes + _sum_own_curvature(part.points, answers, items, weights)
        if has_own_points or shares is None:
            spread += own_products
            spread += _sum_covariances(answers, items, jacobian, moments, weights, own)
            continue
        singles = answers.levels.astype(np.float32)
        for node, share in enumerate(shares.T.astype(np.float32)):
            own_table = table.get_node(node)
            pairs = (singles * share[:, None]).T @ singles
            spread += own_table.T @ (own_table.T @ pairs.T).T
    by_plane = _accumulate_levels(counts, items.n_planes)
    curvatures = [of_planes + _sum_plane_curvature(items, nodes.points, *by_plane)]
    if items.gaussians is not None and numbers is not None:
        curvatures += [*sum_gaussian_curvature(items.gaussians, numbers, is_expected=False)]
    curvatures.append(scipy.sparse.csc_array(np.kron(z_products, np.eye(q))))
    curvature = scipy.sparse.block_diag(curvatures, format="csc")
    total = (jacobian.T @ curvature @ jacobian).toarray()
    return LevelScores(spread, products, total, weighted_products, cluster_scores)


class _PlaneScores(NamedTuple):
    """Scores of some rows in the forms of planes.

    Attributes
    ----------
    rows
        Which rows they are, (n_rows,).
    scores
        E[s | t_n], (n_rows, n_free).
    shares
        Responsibilities for the shared nodes, (n_rows, n_nodes); None of rows that share none.
    points
        Their own points then; None if the rows have no value with levels.
    """

    rows: NDArray[np.intp]
    scores: Floats
    shares: Floats | None
    points: OwnPoints | None = None


def _iter_plane_scores(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    nodes: Nodes,
    posterior: LevelPosterior,
    table: _ScoreTable,
    jacobian: _JacobianParts,
    row_means: Floats | None,
) -> Iterator[_PlaneScores]:
    """Yield all rows, some at a time: first those that share nodes."""
    shared, own = np.flatnonzero(~posterior.is_own), np.flatnonzero(posterior.is_own)
    by_place = scipy.sparse.csr_array(
        (np.ones(len(table.levels)), (table.parameters, np.arange(len(table.levels)))),
        shape=(table.shape[1], len(table.levels)),
    )
    taken = X[shared], None if observed is None else observed[shared]
    means = None if row_means is None else row_means[shared]
    for rows, shares in _iter_shares(*taken, items, nodes, means):
        levels = split_answers(
            taken[0][rows], None if taken[1] is None else taken[1][rows], items
        ).levels
        by_entry = (shares @ table.values) * levels[:, table.levels]
        yield _PlaneScores(shared[rows], np.asarray((by_place @ by_entry.T).T), shares)
    near = condition_on_numbers(
        X[own],
        None if observed is None else observed[own],
        items,
        None if row_means is None else row_means[own],
    )
    own_X, own_mask = X[own], None if observed is None else observed[own]
    has_levels = find_level_rows(own_X, own_mask, items)
    for points in iter_own_points(*take_rows(has_levels, own_X, own_mask, items, near)):
        weighted = points.derivatives * points.shares[:, None]
        of_forms = np.einsum("njk,nka->nja", weighted, points.extend())
        scores = (jacobian.planes.T @ of_forms.reshape(len(of_forms), -1).T).T
        yield _PlaneScores(own[has_levels[points.rows]], np.asarray(scores), None, points)
    exact = np.delete(own, has_levels)
    for start in range(0, len(exact), _MAX_ROWS):
        some = exact[start : start + _MAX_ROWS]
        yield _PlaneScores(some, np.zeros((len(some), table.shape[1])), None)


def _sum_own_curvature(
    points: OwnPoints, answers: RowAnswers, items: LevelItems, row_weights: Floats
) -> scipy.sparse.csc_array:
    """Return minus the second derivatives of rows at their own points in the forms of planes."""
    shares = (points.shares * row_weights[:, None]).reshape(-1)
    counts = np.repeat(answers.levels.T, points.x.shape[1], axis=1) * shares
    by_plane = _accumulate_levels(counts, items.n_planes)
    return _sum_plane_curvature(items, points.x.reshape(len(shares), -1), *by_plane)


class _JacobianParts(NamedTuple):
    """Rows of J: forms of planes, forms of continuous items, and Θ."""

    planes: scipy.sparse.csr_array
    continuous: scipy.sparse.csr_array
    theta: scipy.sparse.csr_array


def _split_jacobian(jacobian: scipy.sparse.csr_array, items: LevelItems) -> _JacobianParts:
    n_planes, q = items.weights.shape
    n_forms = n_planes + 2 * int(np.count_nonzero(items.n_planes == 0))
    ends = n_planes * (q + 1), n_forms * (q + 1)
    return _JacobianParts(jacobian[: ends[0]], jacobian[ends[0] : ends[1]], jacobian[ends[1] :])


def _score_numbers(
    answers: RowAnswers,
    items: LevelItems,
    posterior: HasMoments,
    jacobian: _JacobianParts,
    regression: RowRegression | None,
) -> Floats:
    """Return E[s | t_n] of rows in continuous items and Θ, (n_rows, n_free)."""
    scores = np.zeros((jacobian.planes.shape[1], len(answers.levels)))
    if items.gaussians is not None:
        of_forms = items.gaussians.score_rows(
            answers.values, answers.mask, posterior.mean, posterior.covariance
        )
        scores += jacobian.continuous.T @ of_forms.T
    if regression is not None:
        deviations = posterior.mean - regression.means
        of_theta = regression.covariates[:, :, None] * deviations[:, None]
        scores += jacobian.theta.T @ of_theta.reshape(len(deviations), -1).T
    return np.asarray(scores.T)


def count_score_products(n_planes: Indices, n_free: int, n_nodes: int, q: int) -> int:
    """Return the work per row of `sum_level_scores`, in multiplications."""
    n_levels = int(count_item_levels(n_planes).sum())
    if n_levels <= _MAX_NODE_LEVELS and (n_planes > 0).all():
        return n_nodes * n_levels**2
    n_points: int = _POINTS_PER_AXIS[q] ** q
    n_vectors = count_score_vectors(int(np.maximum(n_planes, 1).sum()), q, n_points)
    return n_vectors * n_free**2 + _PRODUCTS_PER_PROBABILITY * n_points * n_levels


def _sum_covariances(
    answers: RowAnswers,
    items: LevelItems,
    jacobian: scipy.sparse.csr_array,
    posterior: HasMoments,
    row_weights: Floats,
    regression: RowRegression | None,
) -> Floats:
    """Sum Cov[s | t_n] of rows times their weights on points of their posteriors."""
    q = items.weights.shape[1]
    rule = gauss_hermite(_POINTS_PER_AXIS[q], q)
    total, singles = np.zeros((jacobian.shape[1],) * 2), jacobian.T.astype(np.float32)
    for part in _iter_deviations(answers, items, posterior, row_weights, regression, rule):
        flat = singles @ part.deviations.T
        total += flat @ flat.T
    return total


class _Deviations(NamedTuple):
    """Scores of some rows about their means, on points of their posteriors.

    Attributes
    ----------
    rows
        Which rows they are.
    points, shares
        The points, (n_rows, n_points, q), and their shares of the posteriors, (n_rows, n_points).
    deviations
        Vectors whose products sum to Cov[s | t_n] of the rows times their weights, in the forms of
        all items and then Θ, (n_vectors, …).
    """

    rows: slice
    points: Floats
    shares: Floats
    deviations: NDArray[np.float32]


def _iter_deviations(
    answers: RowAnswers,
    items: LevelItems,
    posterior: HasMoments,
    row_weights: Floats,
    regression: RowRegression | None,
    rule: Nodes,
) -> Iterator[_Deviations]:
    """Yield the deviations of the scores of all rows, some at a time."""
    mean = posterior.mean
    n_items, n_planes = len(items.n_planes), len(items.offsets)
    polynomials = choose_polynomials(rule, n_planes + int(np.count_nonzero(items.n_planes == 0)))
    size = len(rule.points) * (n_planes + n_items) * int(items.n_planes.max(initial=1))
    n_rows = max(1, _BATCH_ENTRIES // size)
    for start in range(0, len(mean), n_rows):
        check_cancelled()
        rows = slice(start, start + n_rows)
        x = place_points(rule, mean[rows], posterior.covariance[rows])
        residual, log_joint = differentiate_rows(answers.levels[rows], items, x)
        if items.gaussians is not None:
            values, mask = answers.values[rows], answers.mask[rows]
            own, log_p = items.gaussians.differentiate_rows(values, mask, x)
            residual, log_joint = np.concatenate([residual, own], axis=1), log_joint + log_p
        centred = x if regression is None else x - regression.means[rows, None]
        share = compute_point_shares(log_joint, centred, rule)
        z = np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2)
        deviations = deviate_scores(residual, z, share, polynomials)
        deviations = deviations.reshape(*deviations.shape[:2], -1)
        if regression is not None:
            covariates = regression.covariates[rows]
            _, own = score_regression(centred, share, polynomials, covariates)
            deviations = np.concatenate([deviations, own.astype(np.float32)], axis=2)
        deviations *= np.sqrt(row_weights[rows]).astype(np.float32)[:, None, None]
        yield _Deviations(rows, x, share, deviations.reshape(-1, deviations.shape[2]))


def list_form_places(n_planes: Indices, q: int) -> list[Indices]:
    """Return the places in v of each item's weights and offsets, (n_items, size) of items alike."""
    forms = [alike.planes for alike in iter_alike(n_planes)]
    n_continuous = int(np.count_nonzero(n_planes == 0))
    if n_continuous:
        forms.append(n_planes.sum() + np.arange(2 * n_continuous).reshape(-1, 2))
    return [place_forms(own, q + 1) for own in forms]


def sum_level_blocks(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    posterior: HasMoments,
    directions: Floats,
    row_weights: Floats,
) -> BlockScores:
    """Sum the information of each item, and along directions V that all items share.

    Items are in the order of `list_form_places`, their blocks one after the other, and `directions`
    are V, (n_forms (q + 1), n_directions). Other parameters are as for `sum_level_scores`.
    """
    q, answers = items.weights.shape[1], split_answers(X, observed, items)
    places = list_form_places(items.n_planes, q)
    curvature, variance = (
        [np.zeros((len(own), own.shape[1], own.shape[1])) for own in places] for _ in range(2)
    )
    shared, V = np.zeros((directions.shape[1],) * 2), directions.astype(np.float32)
    rule = choose_point_rule(len(items.offsets), q)
    for part in _iter_deviations(answers, items, posterior, row_weights, None, rule):
        for total, own in zip(variance, places, strict=True):
            by_item = part.deviations[:, own].transpose(1, 2, 0)
            total += by_item @ by_item.swapaxes(1, 2)
        along = part.deviations @ V
        shared += along.T @ along
        shares = (part.shares * row_weights[part.rows, None]).reshape(-1)
        counts = np.repeat(answers.levels[part.rows].T, part.shares.shape[1], axis=1) * shares
        by_plane = _accumulate_levels(counts, items.n_planes)
        found = _iter_curvatures(items, part.points.reshape(len(shares), -1), *by_plane)
        for total, (_, own_curvature) in zip(curvature, found, strict=False):
            total += own_curvature
    if items.gaussians is not None:
        moments = posterior.mean, posterior.covariance
        sums = sum_gaussian_moments(answers.values, answers.mask, *moments, row_weights)
        curvature[-1] += sum_gaussian_curvature(items.gaussians, sums, is_expected=False)
    flat = [np.concatenate([own.reshape(-1) for own in total]) for total in (curvature, variance)]
    return BlockScores(flat[0], flat[1], shared)


def _iter_shares(
    X: Answers,
    observed: Bits | None,
    items: LevelItems,
    nodes: Nodes,
    row_means: Floats | None,
) -> Iterator[tuple[slice, Floats]]:
    """Yield rows and their responsibilities, many rows at a time."""
    parts: list[Floats] = []
    start, n_rows = 0, min(_MAX_ROWS, _MAX_SHARES // len(nodes.points))
    tabulate = partial(tabulate_levels, items)
    for rows, shares in iter_curve_responsibilities(X, observed, tabulate, nodes, row_means):
        parts.append(shares)
        if rows.stop - start >= n_rows or rows.stop == len(X):
            yield slice(start, rows.stop), np.concatenate(parts)
            start = rows.stop
            parts.clear()


def _accumulate_levels(counts: Floats, n_planes: Indices) -> tuple[Floats, Floats]:
    """Return ones and mass of all planes, given the counts of the levels, (n_levels, n_nodes)."""
    ones, mass = np.zeros((2, int(n_planes.sum()), counts.shape[1]))
    for alike in iter_alike(n_planes):
        own = np.cumsum(counts[alike.levels][:, ::-1], axis=1)[:, ::-1]
        ones[alike.planes], mass[alike.planes] = own[:, 1:], own[:, :1]
    return ones, mass
