"""Fit statistics of a latent-trait model: likelihood, M₂ or C₂ and their indices, reliability.

A level j of an item has the plane t_j = [y ≥ j], so its score is y = Σ_j t_j. C₂ compares the
shares of ones of all planes and the mean products of the scores of all pairs of items with the
model (L. Cai, S. Monroe, CRESST report 839, 2014). If all items are binary, it is M₂ (A.
Maydeu-Olivares, H. Joe, JASA 100 (2005)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.numerics.logistic.asymptotes import (
    Asymptotes,
    differentiate_curves,
    list_directions,
)
from pipeline.numerics.logistic.categories.curves import (
    ItemsAlike,
    LevelItems,
    compute_item_information,
    compute_level_probabilities,
    compute_plane_probabilities,
    iter_alike,
)
from pipeline.numerics.logistic.categories.scores import extend_points
from pipeline.numerics.logistic.information import average_reliability
from pipeline.numerics.logistic.latent_nodes import Nodes
from pipeline.numerics.metrics import find_noncentrality
from pipeline.numerics.spectra.reliability import compute_alpha, find_signs
from pipeline.statistics.information_criteria import compute_criteria
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Indices = NDArray[np.int64]

_MIN_ITEMS = 3  # fewer items have no informative sum scores
_MIN_PAIR_VARIANCE = 1e-12
_INVALID_WITH_WEIGHTS = "the rows have sampling weights"
_MAX_STEPS = 2000
_RESIDUAL_TOLERANCE = 1e-5  # relative norm of the residual; the relative error of M₂ is near 1e-8
_RANK_TOLERANCE = 1e-12  # relative, squared; smaller derivatives count as zero


class FittedItems(NamedTuple):
    """The items that vary in the data, and how they depend on the free parameters.

    Attributes
    ----------
    features, planes
        Their indices and those of their planes among all items, (n,) and (n_planes,).
    items, nodes
        The items, and a discrete approximation of the prior of the traits.
    jacobian
        Derivatives of weights and offsets of planes, (n_planes (q + 1), n_parameters). With
        asymptotes, an item has their logits next to its offset.
    level_counts
        Number of rows with each level of each item, (n_levels,).
    n_item_parameters
        Number of the parameters of items, if the last ones are of traits, or asymptotes that all
        items share; None if all are.
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
    ) -> FittedItems:
        """Select the items that have several levels in the data."""
        n_planes = items.n_planes
        n_present = np.zeros(len(n_planes), np.int64)
        for alike in iter_alike(n_planes):
            n_present[alike.features] = (level_counts[alike.levels] > 0).sum(axis=1)
        features = np.flatnonzero(n_present > 1)
        planes = np.flatnonzero(np.repeat(n_present > 1, n_planes))
        asymptotes = items.asymptotes
        if asymptotes is not None:
            asymptotes = Asymptotes(*(values[features] for values in asymptotes))
        chosen = LevelItems(
            items.weights[planes],
            items.offsets[planes],
            n_planes[features],
            items.is_cumulative,
            asymptotes=asymptotes,
        )
        width = jacobian.shape[0] // len(items.offsets)
        own = jacobian[(planes[:, None] * width + np.arange(width)).ravel()]
        counts = level_counts[np.repeat(n_present > 1, n_planes + 1)]
        return cls(features, planes, chosen, nodes, own, counts, n_item_parameters, constraints)

    @property
    def firsts(self) -> Indices:
        """First plane of each item, (n,)."""
        n_planes = self.items.n_planes
        return np.cumsum(n_planes) - n_planes

    @property
    def n_parameters_per_plane(self) -> int:
        """Number of rows of the Jacobian per plane."""
        return int(self.jacobian.shape[0] // len(self.planes))

    def find_informative_planes(self) -> Indices:
        """Return the planes whose level is in the data, without the lowest such of each item."""
        planes = [np.zeros(0, np.int64)]
        for alike in iter_alike(self.items.n_planes):
            is_present = self.level_counts[alike.levels] > 0
            has_lower = np.cumsum(is_present, axis=1)[:, :-1] > 0
            planes.append(alike.planes[is_present[:, 1:] & has_lower])
        return np.sort(np.concatenate(planes))


def compute_likelihood_statistics(
    items: LevelItems, sums: Sums, rank: int, has_sampling_weights: bool
) -> dict[str, Any]:
    """Return likelihood, information criteria, reliability, or why criteria are left out.

    `sums` is the result of the information pass over all rows, and `rank` the number of
    identifiable parameters.
    """
    found = compute_criteria(
        sums.objective, rank, sums.weight, has_sampling_weights=has_sampling_weights
    )
    found["reliability"] = compute_reliability(sums).tolist()
    if items.weights.shape[1] == 1:
        found["marginal_reliability"] = average_reliability(
            lambda points: compute_item_information(items, points[:, None])[:, :, 0, 0].sum(0)
        )
    return found


def compute_fit_statistics(
    model: FittedItems, sums: Sums, rank: int, has_sampling_weights: bool
) -> dict[str, Any]:
    """Return M₂ or C₂ with its indices, and the number of rows of S-X², or why they are left out.

    So is alpha of the rows that have all values. Arguments are as for
    `compute_likelihood_statistics`. Entries that end in `_missing` state why an index is left out.
    """
    found: dict[str, Any] = {"m2_form": "C2"} if (model.items.n_planes > 1).any() else {}
    if has_sampling_weights:
        return found | {f"{name}_missing": _INVALID_WITH_WEIGHTS for name in ("m2", "s_x2")}
    if reason := explain_missing_s_x2(sums.values, model.features):
        found["s_x2_missing"] = reason
    else:
        found["s_x2_rows"] = int(sums.values["score_rows"].sum())
    n = len(model.features)
    df = len(model.find_informative_planes()) + math.comb(n, 2) - rank
    if reason := _explain_missing_m2(sums, n, df, rank):
        return found | {"m2_missing": reason}
    both = sums.values["both"][np.ix_(model.planes, model.planes)]
    n_complete = int(sums.values["score_rows"].sum())
    observed = _observe_moments(both / n_complete, model)
    if (observed.compute_variances() <= 0).any():
        return found | {"m2_missing": "an item is constant in the rows that have all values"}
    found |= _compute_alphas(observed)
    fitted = compute_m2_fit(both, n_complete, model, rank)
    if fitted is None:
        return found | {"m2_missing": "some pairs of items have a probability of 0 or 1"}
    correlations = observed.compute_correlations()[np.triu_indices(n, 1)]
    independent = LimitedInformationFit(
        n_complete * float((correlations**2).sum()),
        len(correlations),
        float(np.sqrt((correlations**2).mean())),
    )
    return found | _compute_fit_indices(fitted, independent, n_complete)


def _compute_alphas(observed: _Moments) -> dict[str, float]:
    """Return alpha of the sum of scores and, if items point the other way, with them reversed."""
    covariance = observed.products - np.outer(observed.scores, observed.scores)
    signs = find_signs(observed.compute_correlations())
    own, turned = (compute_alpha(covariance, s) for s in (np.ones(len(signs)), signs))
    found = {} if own is None else {"alpha": own.value}
    if turned is not None and (signs < 0).any():
        found["alpha_turned"] = turned.value
    return found


def _explain_missing_m2(sums: Sums, n_items: int, df: int, rank: int) -> str:
    """Return why there is no M₂, or an empty text if nothing in the sums prevents it."""
    if "both" not in sums.values:
        return "there are too many items to compare their pairs"
    if df < 1:
        return f"{n_items} items leave no degree of freedom"
    n, n_complete = sums.weight, int(sums.values["score_rows"].sum())
    if n_complete < rank:
        return f"{n_complete:,} rows are too few for {rank:,} parameters"
    if 2 * n_complete < n:
        return f"only {n_complete:,} of {n:,.0f} rows have all values"
    return ""


def explain_missing_s_x2(values: Mapping[str, Any], varying: NDArray[np.intp]) -> str:
    """Return why there is no S-X², or an empty text if there is."""
    if "score_rows" not in values:
        return "there are too many items to compare their sum scores"
    if len(varying) < _MIN_ITEMS:
        return f"{len(varying)} items have no informative sum scores"
    return "" if values["score_rows"].sum() else "no row has all values"


def compute_reliability(sums: Sums) -> Array:
    """Return the share of each component's variance that the codes capture, (q,)."""
    values = sums.values
    n = max(float(values["weight_informing"]), 1)
    mean = values["codes"] / n
    between = np.diag(values["codes_squared"]) / n - mean**2
    within = np.diag(values["codes_variance"]) / n
    reliability: Array = between / (between + within)
    return reliability


def compute_residual_fit(sums: Sums) -> dict[str, Array]:
    """Return the mean squared residuals at the codes, `infit` and `outfit`, (n_features,) each."""
    values = sums.values
    return {
        "infit": values["squares"] / np.maximum(values["variances"], np.finfo(float).tiny),
        "outfit": values["squares_standardized"] / np.maximum(values["observed"], 1),
    }


class LimitedInformationFit(NamedTuple):
    """Fit of a model to margins and pairs.

    `m2` is N eᵀ C e, `df` the number of statistics compared minus the number of parameters, and
    `srmsr` the root mean square of the residual correlations of pairs.
    """

    m2: float
    df: int
    srmsr: float


def _compute_fit_indices(
    fitted: LimitedInformationFit, independent: LimitedInformationFit, n_rows: int
) -> dict[str, Any]:
    """Return RMSEA with its 90 % interval, SRMSR, CFI and TLI (P. M. Bentler, 1990)."""
    m2, df, srmsr = fitted
    ratio, baseline_ratio = m2 / df, independent.m2 / independent.df
    excess, largest = max(m2 - df, 0.0), max(independent.m2 - independent.df, m2 - df, 0.0)
    bounds = [find_noncentrality(m2, df, level) for level in (0.95, 0.05)]
    return {
        "m2": m2,
        "m2_df": df,
        "m2_p": float(scipy.special.chdtrc(df, m2)),
        "rmsea": float(np.sqrt(excess / (df * (n_rows - 1)))),
        "rmsea_interval": [float(np.sqrt(b / (df * (n_rows - 1)))) for b in bounds],
        "srmsr": srmsr,
        "cfi": 1 - excess / largest if largest else 1.0,
        "tli": (baseline_ratio - ratio) / (baseline_ratio - 1),
        "m2_rows": n_rows,
    }


def compute_m2_fit(
    both: Counts, n_rows: int, model: FittedItems, rank: int
) -> LimitedInformationFit | None:
    """Compute M₂, or C₂, from complete rows; None if some pairs hardly vary in the model.

    With p the shares of ones of all planes and the mean products of the scores of pairs of items,
    π those of the model and N rows,

        M₂ = N eᵀ C e,   e = p − π,   C = Ξ⁻¹ − Ξ⁻¹ Δ (Δᵀ Ξ⁻¹ Δ)⁻¹ Δᵀ Ξ⁻¹,

    where Ξ is the covariance of one row's planes and products, and Δ holds the derivatives of π
    (Maydeu-Olivares & Joe, eq. 3.10). M₂ of every consistent estimator has a χ² distribution. It is
    the maximum of 2 xᵀe − xᵀΞx with Δᵀx = 0, computed by conjugate gradients without a matrix of
    pairs by pairs: given a node the items are independent, so that Ξ times a vector costs n_items²
    per node. Scores are those minus their means in the model. With the shares of planes, their
    products say the same, and far fewer steps suffice.

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
    curves = _tabulate_curves(model, kept)
    expected = _expect_moments(curves)
    variances = expected.compute_statistic_variances(kept)
    if variances.min() < _MIN_PAIR_VARIANCE:
        return None
    observed = _observe_moments(both / n_rows, model).subtract(curves.centers)
    residuals = (observed.compute_correlations() - expected.compute_correlations())[
        np.triu_indices(len(model.features), 1)
    ]
    residual = observed.select(kept) - expected.select(kept)
    return LimitedInformationFit(
        n_rows * _maximize_over_statistics(residual, np.sqrt(variances), curves, model, kept),
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

    def subtract(self, centers: Array) -> _Moments:
        """Return the moments of the scores minus these, (n,)."""
        crossed = np.outer(centers, self.scores - 0.5 * centers)
        products = self.products - crossed - crossed.T
        return self._replace(scores=self.scores - centers, products=products)

    def select(self, kept: Indices) -> Array:
        """Return the statistics that M₂ compares: shares of planes, and products of pairs."""
        return np.concatenate(
            [self.planes[kept], self.products[np.triu_indices_from(self.products, 1)]]
        )

    def compute_statistic_variances(self, kept: Indices) -> Array:
        """Return the variance of a row's contribution to each statistic of `select`."""
        above = np.triu_indices_from(self.products, 1)
        of_planes = self.planes[kept] * (1 - self.planes[kept])
        return np.concatenate([of_planes, self.squares[above] - self.products[above] ** 2])


def _observe_moments(shares: Array, model: FittedItems) -> _Moments:
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
        Mean of y minus its center, and variance of y, (n_nodes, n).
    centers
        Mean of y over the nodes, (n,); 0 if not all planes of the item are compared.
    shares
        Weights of the nodes, (n_nodes,).
    pair_variances
        Mean of the product of two variances over the nodes, (n, n).
    """

    planes: Array
    scores: Array
    variances: Array
    centers: Array
    shares: Array
    pair_variances: Array


def _tabulate_curves(model: FittedItems, kept: Indices) -> _Curves:
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
    shares = scipy.special.softmax(model.nodes.log_weights)
    is_kept = np.isin(np.arange(len(model.planes)), kept)
    centers = (shares @ scores) * np.logical_and.reduceat(is_kept, model.firsts)
    pair_variances = (variances.T * shares) @ variances
    return _Curves(P, scores - centers, variances, centers, shares, pair_variances)


def _expect_moments(curves: _Curves) -> _Moments:
    """Return the moments of the model."""
    weighted = curves.scores.T * curves.shares
    second = curves.variances + curves.scores**2
    products, squares = weighted @ curves.scores, (second.T * curves.shares) @ second
    np.fill_diagonal(products, curves.shares @ second)
    return _Moments(curves.shares @ curves.planes, weighted.sum(axis=1), products, squares)


def _maximize_over_statistics(
    residual: Array, deviations: Array, curves: _Curves, model: FittedItems, kept: Indices
) -> float:
    """Return max 2 xᵀe − xᵀΞx with Δᵀx = 0, with x scaled by the diagonal of Ξ."""
    slopes = _differentiate_statistics(model, curves, kept) @ model.jacobian
    slopes = (scipy.sparse.diags_array(1 / deviations) @ slopes).tocsr()
    solve = _factorize_gram((slopes.T @ slopes).toarray(), _find_fixed_directions(model))
    n_planes = model.items.n_planes
    owners = np.repeat(np.arange(len(n_planes)), n_planes)
    above = np.flatnonzero(np.tri(len(n_planes), k=-1).T)

    def project(x: Array) -> Array:
        return np.asarray(x - slopes @ solve(slopes.T @ x))

    def multiply(x: Array) -> Array:
        image = _multiply_covariance(x / deviations, curves, owners, kept, above, model)
        return project(image / deviations)

    return _maximize_quadratic(project(residual / deviations), multiply)


def _maximize_quadratic(slope: Array, multiply: Callable[[Array], Array]) -> float:
    """Return max 2 xᵀs − xᵀAx by conjugate gradients, given the slope s and the map x ↦ Ax."""
    x, residual, direction = np.zeros_like(slope), slope, slope
    first = before = float(residual @ residual)
    for _ in range(_MAX_STEPS):
        if before <= _RESIDUAL_TOLERANCE**2 * first:
            break
        check_cancelled()
        image = multiply(direction)
        step = before / float(direction @ image)
        x, residual = x + step * direction, residual - step * image
        after = float(residual @ residual)
        direction, before = residual + after / before * direction, after
    return float(x @ slope)


def _factorize_gram(gram: Array, fixed: Array) -> Callable[[Array], Array]:
    """Return x ↦ G⁺ x for a Gram matrix without fixed directions, (n, n_fixed)."""
    moved = gram @ fixed
    crossed = moved @ fixed.T
    gram = gram - crossed - crossed.T + fixed @ (fixed.T @ moved) @ fixed.T
    scale = gram.trace() / len(gram)
    factor, has_failed = scipy.linalg.lapack.dpotrf(gram + scale * fixed @ fixed.T, lower=True)
    norm = np.abs(gram).sum(axis=0).max()
    if not has_failed and scipy.linalg.lapack.dpocon(factor, norm, uplo="L")[0] > _RANK_TOLERANCE:

        def solve(x: Array) -> Array:
            found = scipy.linalg.cho_solve((factor, True), x)
            return np.asarray(found - fixed @ (fixed.T @ found))

        return solve
    values, vectors = scipy.linalg.eigh(gram, driver="evd", overwrite_a=True)
    is_used = values > _RANK_TOLERANCE * values[-1]
    vectors, values = vectors[:, is_used], values[is_used]
    return lambda x: np.asarray(vectors @ ((vectors.T @ x) / values))


def _find_fixed_directions(model: FittedItems) -> Array:
    """Return an orthonormal basis of the directions in which parameters stay, (n_parameters, n).

    These are the constraints, or the rotations of the traits.
    """
    if model.constraints is not None:
        return np.asarray(scipy.linalg.orth(model.constraints.T))
    weights, width = model.items.weights, model.n_parameters_per_plane
    n_planes, q = weights.shape
    rotations = np.zeros((math.comb(q, 2), n_planes, width))
    for rotation, (a, b) in zip(rotations, combinations(range(q), 2), strict=True):
        rotation[:, a], rotation[:, b] = weights[:, b], -weights[:, a]
    free = np.zeros((model.jacobian.shape[1], len(rotations)))
    for place, rotation in enumerate(rotations):
        found = scipy.sparse.linalg.lsqr(model.jacobian, rotation.ravel(), atol=0, btol=1e-14)
        free[:, place] = found[0]
    return np.asarray(scipy.linalg.orth(free)) if len(rotations) else free


def _multiply_covariance(
    x: Array, curves: _Curves, owners: Indices, kept: Indices, above: Indices, model: FittedItems
) -> Array:
    """Return Ξx; `above` are the places above the diagonal in a flat matrix of pairs.

    Given a node, the centred planes of an item and the centred products of scores of pairs are
    uncorrelated. The vector is transformed to this basis and back.
    """
    n = len(model.features)
    singles, pairs = np.zeros(len(owners)), np.zeros((n, n))
    singles[kept], pairs.reshape(-1)[above] = x[: len(kept)], x[len(kept) :]
    pairs += pairs.T
    toward = curves.scores @ pairs  # (n_nodes, n)
    by_plane = toward if model.items.is_binary else toward[:, owners]
    own = _multiply_plane_covariance(singles + by_plane, curves, model)
    by_item = own if model.items.is_binary else np.add.reduceat(own, model.firsts, axis=1)
    means = curves.planes @ singles + 0.5 * np.einsum("ln,ln->l", toward, curves.scores)
    between = curves.shares * (means - curves.shares @ means)
    # Halves of what is symmetric, so that one product of matrices suffices.
    by_item = by_item * curves.shares[:, None] + 0.5 * between[:, None] * curves.scores
    crossed = curves.scores.T @ by_item
    product = crossed + crossed.T + pairs * curves.pair_variances
    of_planes = curves.shares @ own + between @ curves.planes
    return np.concatenate([of_planes[kept], product.reshape(-1)[above]])


def _multiply_plane_covariance(x: Array, curves: _Curves, model: FittedItems) -> Array:
    """Return the covariance of the planes of each item given a node times x, (n_nodes, n_planes).

    E[t_j t_k] is P of the higher of both planes.
    """
    if model.items.is_binary:
        return curves.variances * x
    product = np.empty_like(x)
    for alike in iter_alike(model.items.n_planes):
        own, p = x[:, alike.planes], curves.planes[:, alike.planes]
        lower, weighted = np.cumsum(own, axis=2), p * own
        higher = np.cumsum(weighted[:, :, ::-1], axis=2)[:, :, ::-1] - weighted
        total = weighted.sum(axis=2, keepdims=True)
        product[:, alike.planes] = p * lower + higher - p * total
    return product


def _differentiate_statistics(
    model: FittedItems, curves: _Curves, kept: Indices
) -> scipy.sparse.csr_array:
    """Return the derivatives of the statistics in the rows of the Jacobian, (n_statistics, …)."""
    items, n, width = model.items, len(model.features), model.n_parameters_per_plane
    eta = items.compute_forms(model.nodes.points)
    place_of_plane = np.full(len(eta), -1)
    place_of_plane[kept] = np.arange(len(kept))
    place_of_pair = np.zeros((n, n), np.int64)
    above = np.triu_indices(n, 1)
    place_of_pair[above] = len(kept) + np.arange(len(above[0]))
    place_of_pair += place_of_pair.T
    directions = extend_points(model.nodes.points)[None]
    if items.asymptotes is not None:
        directions = list_directions(model.nodes.points)
    directions = directions * curves.shares[:, None]
    values, rows, columns = [], [], []
    for alike in iter_alike(items.n_planes):
        slopes = _differentiate_planes(items, eta, alike)
        by_plane = np.einsum("aikjl,alc->ikjc", slopes, directions, optimize=True)
        along = np.einsum("aijl,alc->ijcl", slopes.sum(axis=2), directions)
        by_score = np.swapaxes(along @ curves.scores, 2, 3)  # (n_alike, m, n, width)
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


def _differentiate_planes(items: LevelItems, eta: Array, alike: ItemsAlike) -> Array:
    """Return ∂ P(t_k) / ∂ η_j, (1, n, m, m, n_nodes) with k before j.

    With asymptotes there are three such arrays, by (η, logit g, logit s).
    """
    P = np.exp(items.compute_log_probabilities(eta, alike))
    if items.asymptotes is not None:
        by_parameter = differentiate_curves(eta, items.asymptotes.by_item).log_one
        return np.asarray((by_parameter * P[:, 1])[:, :, None, None])
    slopes = items.differentiate(eta, alike) * P[:, :, None]  # ∂ P_c / ∂ η_j
    return np.cumsum(slopes[:, :0:-1], axis=1)[:, ::-1][None]
