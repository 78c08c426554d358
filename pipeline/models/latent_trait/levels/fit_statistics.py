"""C₂ of items with several levels, and its indices.

A level j of an item has the plane t_j = [y ≥ j], so its score is y = Σ_j t_j. C₂ compares the
shares of ones of all planes and the mean products of the scores of all pairs of items with the
model. Apart from that it is M₂, see `fit_statistics`, and equal to it if all items are binary (L.
Cai, S. Monroe, CRESST report 839, 2014).
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.models.latent_trait.fit_statistics import (
    INVALID_WITH_WEIGHTS,
    MIN_PAIR_VARIANCE,
    RANK_TOLERANCE,
    LimitedInformationFit,
    compute_fit_indices,
    explain_missing_m2,
    explain_missing_s_x2,
    maximize_quadratic,
)
from pipeline.numerics.logistic.categories.curves import (
    LevelItems,
    compute_level_probabilities,
    compute_plane_probabilities,
    differentiate_levels,
    iter_alike,
)
from pipeline.numerics.logistic.categories.scores import extend_points
from pipeline.numerics.logistic.latent_nodes import Nodes
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Indices = NDArray[np.int64]


class LevelModel(NamedTuple):
    """The items that vary in the data, and how they depend on the free parameters.

    Attributes
    ----------
    features, planes
        Their indices and those of their planes among all items, (n,) and (n_planes,).
    items, nodes
        The items, and a discrete approximation of the prior of the traits.
    jacobian
        Derivatives of weights and offsets of planes, (n_planes (q + 1), n_parameters).
    level_counts
        Number of rows with each level of each item, (n_levels,).
    n_item_parameters
        Number of the parameters of items, if the last ones are of traits; None if all are.
    constraints
        Gradients of what stays 0, (n_constraints, n_parameters); None if rotations of the traits
        change nothing.
    """

    features: Indices
    planes: Indices
    items: LevelItems
    nodes: Nodes
    jacobian: scipy.sparse.csr_array
    level_counts: Array
    n_item_parameters: int | None = None
    constraints: Array | None = None

    @classmethod
    def from_jacobian(
        cls,
        jacobian: scipy.sparse.csr_array,
        items: LevelItems,
        nodes: Nodes,
        level_counts: Array,
        n_item_parameters: int | None = None,
        constraints: Array | None = None,
    ) -> LevelModel:
        """Select the items that have several levels in the data."""
        n_planes = items.n_planes
        n_present = np.zeros(len(n_planes), np.int64)
        for alike in iter_alike(n_planes):
            n_present[alike.features] = (level_counts[alike.levels] > 0).sum(axis=1)
        is_varying = n_present > 1
        planes = np.flatnonzero(np.repeat(is_varying, n_planes))
        chosen = LevelItems(
            items.weights[planes], items.offsets[planes], n_planes[is_varying], items.is_cumulative
        )
        rows = np.repeat(np.repeat(is_varying, n_planes), items.weights.shape[1] + 1)
        counts = level_counts[np.repeat(is_varying, n_planes + 1)]
        own = jacobian[np.flatnonzero(rows)]
        features = np.flatnonzero(is_varying)
        return cls(features, planes, chosen, nodes, own, counts, n_item_parameters, constraints)

    @property
    def firsts(self) -> Indices:
        """First plane of each item, (n,)."""
        n_planes = self.items.n_planes
        return np.cumsum(n_planes) - n_planes

    def find_informative_planes(self) -> Indices:
        """Return the planes whose level is in the data, without the lowest such of each item."""
        planes = [np.zeros(0, np.int64)]
        for alike in iter_alike(self.items.n_planes):
            is_present = self.level_counts[alike.levels] > 0
            has_lower = np.cumsum(is_present, axis=1)[:, :-1] > 0
            planes.append(alike.planes[is_present[:, 1:] & has_lower])
        return np.sort(np.concatenate(planes))


def compute_level_fit_statistics(
    model: LevelModel, sums: Sums, rank: int, has_sampling_weights: bool
) -> dict[str, Any]:
    """Return C₂ with its indices, and the number of rows of S-X², or why they are left out.

    `sums` is the result of the information pass over all rows, and `rank` the number of
    identifiable parameters. The entries have the names of those of binary items.
    """
    found: dict[str, Any] = {"m2_form": "C2"}
    if has_sampling_weights:
        return found | {f"{name}_missing": INVALID_WITH_WEIGHTS for name in ("m2", "s_x2")}
    if reason := explain_missing_s_x2(sums.values, model.features):
        found["s_x2_missing"] = reason
    else:
        found["s_x2_rows"] = int(sums.values["score_rows"].sum())
    n, kept = len(model.features), model.find_informative_planes()
    df = len(kept) + math.comb(n, 2) - rank
    if reason := explain_missing_m2(sums, n, df, rank):
        return found | {"m2_missing": reason}
    both = sums.values["both"][np.ix_(model.planes, model.planes)]
    n_complete = int(sums.values["score_rows"].sum())
    observed = _observe_moments(both / n_complete, model)
    if (observed.compute_variances() <= 0).any():
        return found | {"m2_missing": "an item is constant in the rows that have all values"}
    if _expect_moments(model).compute_statistic_variances(kept).min() < MIN_PAIR_VARIANCE:
        return found | {"m2_missing": "some pairs of items have a probability of 0 or 1"}
    fitted = compute_c2_fit(both, n_complete, model, rank)
    correlations = observed.compute_correlations()[np.triu_indices(n, 1)]
    independent = LimitedInformationFit(
        n_complete * float((correlations**2).sum()),
        len(correlations),
        float(np.sqrt((correlations**2).mean())),
    )
    return found | compute_fit_indices(fitted, independent, n_complete)


def compute_c2_fit(
    both: Counts, n_rows: int, model: LevelModel, rank: int
) -> LimitedInformationFit:
    """Compute C₂ from complete rows.

    Parameters
    ----------
    both, n_rows
        Number of rows in which both planes are 1, (n_planes, n_planes), and number of rows.
    model
        The model.
    rank
        Number of identifiable parameters.
    """
    kept = model.find_informative_planes()
    observed, expected = _observe_moments(both / n_rows, model), _expect_moments(model)
    residuals = (observed.compute_correlations() - expected.compute_correlations())[
        np.triu_indices(len(model.features), 1)
    ]
    return LimitedInformationFit(
        n_rows * _maximize_over_statistics(observed, expected, model, kept),
        len(kept) + len(residuals) - rank,
        float(np.sqrt((residuals**2).mean())),
    )


class _Moments(NamedTuple):
    """Shares of ones of planes, (n_planes,), and means of scores and their products.

    Attributes
    ----------
    planes
        (n_planes,).
    scores, products
        E[y_i], (n,), and E[y_i y_j], (n, n), with E[y_i²] on the diagonal.
    squares
        E[y_i² y_j²], (n, n), of the model; empty if observed.
    """

    planes: Array
    scores: Array
    products: Array
    squares: Array

    def compute_variances(self) -> Array:
        """Return the variances of scores, (n,)."""
        return np.asarray(np.diag(self.products) - self.scores**2)

    def compute_correlations(self) -> Array:
        """Return the correlations of scores, (n, n)."""
        deviations = np.sqrt(self.compute_variances())
        covariance = self.products - np.outer(self.scores, self.scores)
        return np.asarray(covariance / np.outer(deviations, deviations))

    def select(self, kept: Indices) -> Array:
        """Return the statistics that C₂ compares: shares of planes, and products of pairs."""
        return np.concatenate(
            [self.planes[kept], self.products[np.triu_indices_from(self.products, 1)]]
        )

    def compute_statistic_variances(self, kept: Indices) -> Array:
        """Return the variance of a row's contribution to each statistic of `select`."""
        above = np.triu_indices_from(self.products, 1)
        of_planes = self.planes[kept] * (1 - self.planes[kept])
        return np.concatenate([of_planes, self.squares[above] - self.products[above] ** 2])


def _observe_moments(shares: Array, model: LevelModel) -> _Moments:
    """Return the moments in the data, given the shares of two ones of planes."""
    by_item = np.add.reduceat(np.add.reduceat(shares, model.firsts, axis=0), model.firsts, axis=1)
    planes = np.diag(shares)
    return _Moments(planes, np.add.reduceat(planes, model.firsts), by_item, np.empty((0, 0)))


class _Curves(NamedTuple):
    """Probabilities and scores given each node.

    Attributes
    ----------
    planes
        P(t_j = 1), (n_nodes, n_planes).
    scores, variances
        Mean and variance of y, (n_nodes, n).
    shares
        Weights of the nodes, (n_nodes,).
    """

    planes: Array
    scores: Array
    variances: Array
    shares: Array


def _tabulate_curves(model: LevelModel) -> _Curves:
    items, points = model.items, model.nodes.points
    P, levels = (
        compute_plane_probabilities(items, points),
        compute_level_probabilities(items, points),
    )
    n = len(model.features)
    scores, variances = np.empty((len(points), n)), np.empty((len(points), n))
    for alike in iter_alike(items.n_planes):
        own, values = levels[:, alike.levels], np.arange(alike.levels.shape[1])
        mean = own @ values
        scores[:, alike.features] = mean
        variances[:, alike.features] = (own * (values - mean[:, :, None]) ** 2).sum(axis=2)
    return _Curves(P, scores, variances, np.exp(model.nodes.log_weights))


def _expect_moments(model: LevelModel) -> _Moments:
    """Return the moments of the model."""
    curves = _tabulate_curves(model)
    weighted = curves.scores.T * curves.shares
    second = curves.variances + curves.scores**2
    products, squares = weighted @ curves.scores, (second.T * curves.shares) @ second
    np.fill_diagonal(products, curves.shares @ second)
    return _Moments(curves.shares @ curves.planes, weighted.sum(axis=1), products, squares)


def _maximize_over_statistics(
    observed: _Moments, expected: _Moments, model: LevelModel, kept: Indices
) -> float:
    """Return max 2 xᵀe − xᵀΞx with Δᵀx = 0, with x scaled by the diagonal of Ξ."""
    deviations = np.sqrt(expected.compute_statistic_variances(kept))
    residual = (observed.select(kept) - expected.select(kept)) / deviations
    scale = scipy.sparse.diags_array(1 / deviations)
    slopes = (scale @ _differentiate_statistics(model, kept) @ model.jacobian).tocsr()
    basis = _find_identifiable_directions(model)
    gram = basis.T @ (slopes.T @ slopes).toarray() @ basis
    inverse = basis @ scipy.linalg.pinvh(gram, rtol=RANK_TOLERANCE) @ basis.T
    curves, n_planes = _tabulate_curves(model), model.items.n_planes
    owners = np.repeat(np.arange(len(n_planes)), n_planes)

    def project(x: Array) -> Array:
        return np.asarray(x - slopes @ (inverse @ (slopes.T @ x)))

    def multiply(x: Array) -> Array:
        image = _multiply_covariance(x / deviations, curves, owners, kept, model)
        return project(image / deviations)

    return maximize_quadratic(project(residual), multiply, lambda a, b: float(a @ b))


def _multiply_covariance(
    x: Array, curves: _Curves, owners: Indices, kept: Indices, model: LevelModel
) -> Array:
    """Return Ξx.

    Given a node, the centred planes of an item and the centred products of scores of pairs are
    uncorrelated. The vector is transformed to this basis and back, as for binary items.
    """
    n = len(model.features)
    above = np.triu_indices(n, 1)
    singles, pairs = np.zeros(len(owners)), np.zeros((n, n))
    singles[kept], pairs[above] = x[: len(kept)], x[len(kept) :]
    pairs += pairs.T
    toward = curves.scores @ pairs  # (n_nodes, n)
    own = _multiply_plane_covariance(singles + toward[:, owners], curves.planes, model)
    by_item = np.add.reduceat(own, model.firsts, axis=1)
    weighted = curves.scores.T * curves.shares
    crossed = weighted @ by_item
    product = (
        crossed + crossed.T + pairs * ((curves.variances.T * curves.shares) @ curves.variances)
    )
    means = curves.planes @ singles + 0.5 * (toward * curves.scores).sum(axis=1)
    between = curves.shares * (means - curves.shares @ means)
    product += (curves.scores.T * between) @ curves.scores
    of_planes = curves.shares @ own + between @ curves.planes
    return np.concatenate([of_planes[kept], product[above]])


def _multiply_plane_covariance(x: Array, P: Array, model: LevelModel) -> Array:
    """Return the covariance of the planes of each item given a node times x, (n_nodes, n_planes).

    E[t_j t_k] is P of the higher of both planes.
    """
    product = np.empty_like(x)
    for alike in iter_alike(model.items.n_planes):
        own, p = x[:, alike.planes], P[:, alike.planes]
        lower, weighted = np.cumsum(own, axis=2), p * own
        higher = np.cumsum(weighted[:, :, ::-1], axis=2)[:, :, ::-1] - weighted
        total = weighted.sum(axis=2, keepdims=True)
        product[:, alike.planes] = p * lower + higher - p * total
    return product


def _differentiate_statistics(model: LevelModel, kept: Indices) -> scipy.sparse.csr_array:
    """Return the derivatives of the statistics in the forms, (n_statistics, n_planes (q + 1))."""
    items, n = model.items, len(model.features)
    curves, eta = _tabulate_curves(model), items.compute_forms(model.nodes.points)
    extended = extend_points(model.nodes.points) * curves.shares[:, None]
    width = extended.shape[1]
    place_of_plane = np.full(len(eta), -1)
    place_of_plane[kept] = np.arange(len(kept))
    place_of_pair = np.zeros((n, n), np.int64)
    above = np.triu_indices(n, 1)
    place_of_pair[above] = len(kept) + np.arange(len(above[0]))
    place_of_pair += place_of_pair.T
    P = compute_level_probabilities(items, model.nodes.points).T
    values, rows, columns = [], [], []
    for alike in iter_alike(items.n_planes):
        own = differentiate_levels(eta[alike.planes], items.is_cumulative)
        own *= P[alike.levels][:, :, None]  # ∂ P_c / ∂ η_j, (n_alike, m + 1, m, n_nodes)
        above_level = np.cumsum(own[:, :0:-1], axis=1)[:, ::-1]
        by_plane = above_level @ extended  # (n_alike, m, m, width)
        by_score = np.einsum(
            "ijl,lk,lc->ijkc", above_level.sum(axis=1), curves.scores, extended, optimize=True
        )
        for item, planes, of_planes, of_pairs in zip(
            alike.features, alike.planes, by_plane, by_score, strict=True
        ):
            place = planes[:, None] * width + np.arange(width)  # (m, width)
            is_kept, others = place_of_plane[planes] >= 0, np.delete(np.arange(n), item)
            of_planes = of_planes[is_kept]
            values += [of_planes.reshape(-1), of_pairs[:, others].transpose(1, 0, 2).reshape(-1)]
            for own_rows in (place_of_plane[planes[is_kept]], place_of_pair[item, others]):
                rows.append(np.repeat(own_rows, place.size))
                columns.append(np.tile(place.reshape(-1), len(own_rows)))
    places = (np.concatenate(rows), np.concatenate(columns))
    shape = (len(kept) + len(above[0]), len(eta) * width)
    return scipy.sparse.csr_array((np.concatenate(values), places), shape=shape)


def _find_identifiable_directions(model: LevelModel) -> Array:
    """Return a basis of the parameters within the constraints, or orthogonal to rotations."""
    if model.constraints is not None:
        return np.asarray(scipy.linalg.null_space(model.constraints))
    weights, n_free = model.items.weights, model.jacobian.shape[1]
    n_planes, q = weights.shape
    rotations = np.zeros((math.comb(q, 2), n_planes, q + 1))
    for rotation, (a, b) in zip(rotations, combinations(range(q), 2), strict=True):
        rotation[:, a], rotation[:, b] = weights[:, b], -weights[:, a]
    if not len(rotations):
        return np.eye(n_free)
    flat = rotations.reshape(len(rotations), -1).T
    free = np.linalg.lstsq(model.jacobian.toarray(), flat, rcond=None)[0]
    return np.asarray(scipy.linalg.null_space(free.T))
