"""Fit statistics of a latent-trait model: likelihood, M₂ and its indices, item fit, reliability."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.executors.cancellation import check_cancelled
from pipeline.models.latent_trait.em import LatentTraitParams
from pipeline.numerics.logistic.asymptotes import (
    Asymptotes,
    compute_probabilities,
    differentiate_curves,
    list_directions,
)
from pipeline.numerics.logistic.information import compute_marginal_reliability, find_reversed_items
from pipeline.numerics.logistic.latent_nodes import Nodes
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]

SCORE_STATISTICS = ("s_x2", "s_x2_df", "s_x2_p")
_MIN_ITEMS = 3  # fewer items have no informative sum scores
MIN_EXPECTED = 1.0  # expected rows with and without an item in a cell
MIN_PAIR_VARIANCE = 1e-12
INVALID_WITH_WEIGHTS = "the rows have sampling weights"
_MAX_STEPS = 2000
_RESIDUAL_TOLERANCE = 1e-4  # relative norm of the residual; the relative error of M₂ is near 1e-7
RANK_TOLERANCE = 1e-12  # relative, squared; smaller derivatives count as zero


def compute_fit_statistics(
    params: LatentTraitParams,
    sums: Sums,
    nodes: Nodes,
    rank: int,
    varying: NDArray[np.intp],
    has_sampling_weights: bool,
    directions: Array | None = None,
) -> dict[str, Any]:
    """Return likelihood, information criteria, reliability, M₂ with its indices, and rows of S-X².

    `sums` is the result of `summarize_information` over all rows, `rank` the number of identifiable
    parameters, and `varying` the features that are not constant. `directions` are as in
    `compute_m2_fit`. Entries that end in `_missing` state why an index is left out.
    """
    n, log_likelihood = sums.weight, sums.objective
    asymptotes = _select_asymptotes(params, varying)
    statistics: dict[str, Any] = {
        "log_likelihood": log_likelihood,
        "n_parameters": rank,
        "reliability": compute_reliability(sums).tolist(),
    }
    if params.weights.shape[1] == 1:
        curves = (params.weights[varying, 0], params.offsets[varying])
        statistics["marginal_reliability"] = compute_marginal_reliability(*curves, asymptotes)
    if has_sampling_weights:
        names = ("aic", "m2", "s_x2")
        return statistics | {f"{name}_missing": INVALID_WITH_WEIGHTS for name in names}
    statistics |= {
        "aic": 2 * rank - 2 * log_likelihood,
        "bic": rank * float(np.log(n)) - 2 * log_likelihood,
    }
    if reason := explain_missing_s_x2(sums.values, varying):
        statistics["s_x2_missing"] = reason
    else:
        statistics["s_x2_rows"] = int(sums.values["score_rows"].sum())
    size = len(varying)
    df = size * (size + 1) // 2 - rank
    if reason := explain_missing_m2(sums, size, df, rank):
        return statistics | {"m2_missing": reason}
    both = sums.values["both"][np.ix_(varying, varying)]
    n_complete = int(sums.values["score_rows"].sum())
    if _has_constant_item(both, n_complete):
        return statistics | {"m2_missing": "an item is constant in the rows that have all values"}
    weights, offsets = params.weights[varying], params.offsets[varying]
    if _is_certain_of_pairs(weights, offsets, nodes, asymptotes):
        return statistics | {"m2_missing": "some pairs of items have a probability of 0 or 1"}
    model = (weights, offsets, nodes, rank, asymptotes, directions)
    fitted = compute_m2_fit(both, n_complete, *model)
    assert fitted.df == df
    independent = compute_independence_fit(both, n_complete)
    return statistics | compute_fit_indices(fitted, independent, n_complete)


def explain_missing_m2(sums: Sums, n_items: int, df: int, rank: int) -> str:
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


def _select_asymptotes(params: LatentTraitParams, features: NDArray[np.intp]) -> Asymptotes | None:
    if (asymptotes := params.asymptotes) is None:
        return None
    return Asymptotes(*(values[features] for values in asymptotes))


def _is_certain_of_pairs(
    weights: Array, offsets: Array, nodes: Nodes, asymptotes: Asymptotes | None
) -> bool:
    """Return whether the variance of a product of two bits is 0, or nearly so."""
    P = compute_probabilities(nodes.points @ weights.T + offsets, asymptotes)
    shares = _compute_expected_shares(P, np.exp(nodes.log_weights))
    return bool((shares * (1 - shares)).min() < MIN_PAIR_VARIANCE)


def _compute_expected_shares(P: Array, node_shares: Array) -> Array:
    """Return the probabilities of two ones, and of one on the diagonal; `P` is (n_nodes, n)."""
    expected: Array = (P.T * node_shares) @ P
    np.fill_diagonal(expected, node_shares @ P)
    return expected


def _has_constant_item(both: NDArray[np.int64], n_rows: int) -> bool:
    ones = np.diag(both)
    return bool(((ones == 0) | (ones == n_rows)).any())


def compute_reliability(sums: Sums) -> Array:
    """Return the share of each component's variance that the codes capture, (q,)."""
    values = sums.values
    n = max(float(values["weight_informing"]), 1)
    mean = values["codes"] / n
    between = np.diag(values["codes_squared"]) / n - mean**2
    within = np.diag(values["codes_variance"]) / n
    reliability: Array = between / (between + within)
    return reliability


def compute_fit_indices(
    fitted: LimitedInformationFit, independent: LimitedInformationFit, n_rows: int
) -> dict[str, Any]:
    """Return RMSEA with its 90 % interval, SRMSR, CFI and TLI (P. M. Bentler, 1990)."""
    m2, df, srmsr = fitted
    ratio, baseline_ratio = m2 / df, independent.m2 / independent.df
    excess, largest = max(m2 - df, 0.0), max(independent.m2 - independent.df, m2 - df, 0.0)
    bounds = [_noncentrality(m2, df, level) for level in (0.95, 0.05)]
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


def _noncentrality(value: float, df: int, level: float) -> float:
    """Return the noncentrality (at least 0) for which P(χ² < value) is `level`."""
    is_central = scipy.special.chdtr(df, value) <= level
    return 0.0 if is_central else float(scipy.special.chndtrinc(value, df, level))


def compute_item_statistics(
    params: LatentTraitParams,
    sums: Sums,
    nodes: Nodes,
    varying: NDArray[np.intp],
    n_own_asymptotes: int = 0,
) -> dict[str, Array]:
    """Return infit, outfit, and S-X² with its degrees of freedom and p-value, each (n_features,).

    `sums` is the result of `summarize_information` over all rows. Residuals are taken at the means
    of the codes. S-X² is NaN for constant features, and for those without degrees of freedom. With
    too many or too few items there is none. `n_own_asymptotes` is the number of asymptotes that
    are estimated for each item.
    """
    values, statistics = sums.values, compute_residual_fit(sums)
    if explain_missing_s_x2(values, varying):
        return statistics
    rows, ones = values["score_rows"], values["score_ones"]
    n_complete = int(rows.sum())
    # Constant features that are always 1 raise all scores alike.
    n_always = int((np.delete(ones, varying, axis=1).sum(axis=0) == n_complete).sum())
    scores = slice(n_always, n_always + len(varying) + 1)
    # Of each item's answers, the share in complete rows; `observed` is of a sample of the rows.
    answers = sums.weight * np.maximum(values["observed"][varying], 1)
    shares = n_complete * float(values["weight_informing"]) / answers
    # Reversed items are turned: the statistic of the zeros of an item is that of its ones.
    is_reversed = find_reversed_items(params.weights)[varying]
    rows, ones = rows[scores], ones[scores][:, varying]
    sign = np.where(is_reversed, -1.0, 1.0)
    asymptotes = _select_asymptotes(params, varying)
    if asymptotes is not None:
        g, s = asymptotes
        asymptotes = Asymptotes(np.where(is_reversed, s, g), np.where(is_reversed, g, s))
    by_score = item_fit_statistics(
        rows,
        np.where(is_reversed, rows[:, None] - ones, ones),
        params.weights[varying] * sign[:, None],
        params.offsets[varying] * sign,
        nodes,
        shares,
        asymptotes,
        n_own_asymptotes,
    )
    for name, value in zip(SCORE_STATISTICS, by_score, strict=True):
        statistics[name] = np.full(len(params.offsets), np.nan)
        statistics[name][varying] = value
    return statistics


def compute_residual_fit(sums: Sums) -> dict[str, Array]:
    """Return the mean squared residuals at the codes, `infit` and `outfit`, (n_features,) each."""
    values = sums.values
    return {
        "infit": values["squares"] / np.maximum(values["variances"], np.finfo(float).tiny),
        "outfit": values["squares_standardized"] / np.maximum(values["observed"], 1),
    }


def explain_missing_s_x2(values: Mapping[str, Any], varying: NDArray[np.intp]) -> str:
    """Return why there is no S-X², or an empty text if there is."""
    if "score_rows" not in values:
        return "there are too many items to compare their sum scores"
    if len(varying) < _MIN_ITEMS:
        return f"{len(varying)} items have no informative sum scores"
    return "" if values["score_rows"].sum() else "no row has all values"


class ItemFit(NamedTuple):
    """S-X² of each item, its degrees of freedom and p-value, (n_features,).

    All three are NaN if no degree of freedom is left.
    """

    s_x2: Array
    df: Array
    p: Array


def item_fit_statistics(
    rows: NDArray[np.int64],
    ones: NDArray[np.int64],
    weights: Array,
    offsets: Array,
    nodes: Nodes,
    shares: Array,
    asymptotes: Asymptotes | None = None,
    n_own_asymptotes: int = 0,
) -> ItemFit:
    """Compute S-X² of each item from the rows without missing values.

    N_k rows have the sum score k. An observed share O_ik and an expected share E_ik of them have
    item i:

        S-X²_i = Σ_k N_k (O_ik − E_ik)² / (E_ik (1 − E_ik)),   k = 1, …, n − 1

    (M. Orlando, D. Thissen, Applied Psychological Measurement 24 (2000), eq. 5). A score with fewer
    than one expected row with or without the item is merged with the next.

    Estimating the q + 1 parameters of an item from these rows costs q + 1 degrees of freedom. If
    only a share s of the item's answers are in these rows, the estimates follow the rows less. Then
    the q + 1 directions that are fitted have variance 1 − s instead of 0, so that the mean of S-X²
    is the number of cells minus s (q + 1), which is taken as its degrees of freedom.

    Parameters
    ----------
    rows
        Number of rows of each score, (n_features + 1,).
    ones
        Number of them that have each item, (n_features + 1, n_features).
    weights, offsets, nodes
        The model, as in `compute_m2_fit`.
    shares
        Share s of each item, (n_features,); 1 if no values are missing.
    asymptotes, n_own_asymptotes
        Guessing and slipping, if any, and how many of them are parameters of one item.
    """
    n_parameters = weights.shape[1] + 1 + n_own_asymptotes
    expected = item_probabilities_by_score(weights, offsets, nodes, asymptotes)
    s_x2, df = np.full(len(offsets), np.nan), np.full(len(offsets), np.nan)
    for i, share in enumerate(shares):
        cells = _merge_cells(rows[1:-1], ones[1:-1, i], expected[1:-1, i] * rows[1:-1])
        if len(cells) > n_parameters:
            n, o, e = cells.T
            s_x2[i] = (n * (o - e) ** 2 / (e * (n - e))).sum()
            df[i] = len(cells) - share * n_parameters
    return ItemFit(s_x2, df, scipy.special.chdtrc(df, s_x2))


def item_probabilities_by_score(
    weights: Array, offsets: Array, nodes: Nodes, asymptotes: Asymptotes | None = None
) -> Array:
    """Return P(item | sum score), (n_features + 1, n_features).

    Given a node, the characteristic function of the score is a product with one factor per item.
    Dividing by a factor leaves the score of all other items. At an odd number of points, no factor
    is 0.
    """
    n_features, share = len(offsets), np.exp(nodes.log_weights)
    n_points = n_features + 1 + n_features % 2
    P = compute_probabilities(nodes.points @ weights.T + offsets, asymptotes)
    phase = np.exp(-2j * np.pi * np.arange(n_points // 2 + 1) / n_points) - 1
    product = np.exp(sum(np.log1p(np.outer(p, phase)) for p in P.T))
    scores = np.fft.irfft(share @ product, n_points)
    expected = np.zeros((n_features + 1, n_features))
    for i, p in enumerate(P.T):
        others = (share * p) @ (product / (1 + np.outer(p, phase)))
        expected[1:, i] = np.fft.irfft(others, n_points)[:n_features]
    positive = np.maximum(scores[: n_features + 1], np.finfo(float).tiny)
    return np.clip(expected / positive[:, None], 0.0, 1.0)


def _merge_cells(rows: NDArray[np.int64], ones: NDArray[np.int64], expected: Array) -> Array:
    """Merge scores into large enough cells: rows, ones and expected ones, (n_cells, 3)."""
    ends, n, e = [0], 0.0, 0.0
    for k, (n_rows, n_ones) in enumerate(zip(rows.tolist(), expected.tolist(), strict=True), 1):
        n, e = n + n_rows, e + n_ones
        if min(e, n - e) >= MIN_EXPECTED:
            ends.append(k)
            n = e = 0.0
    cells = np.column_stack([rows, ones, expected])
    return np.asarray(np.add.reduceat(cells, ends[:-1])) if ends[1:] else cells[:0]


class LimitedInformationFit(NamedTuple):
    """Fit of a model to margins and pairs.

    `m2` is N eᵀ C e, `df` the number of shares compared minus the rank of Δ, and `srmsr` the root
    mean square of the residual correlations of pairs.
    """

    m2: float
    df: int
    srmsr: float


class _Curves(NamedTuple):
    """P(x_i = 1 | node), P (1 − P), (n_nodes, n_features), and node weights, (n_nodes,)."""

    P: Array
    variance: Array
    share: Array


class _ShareDerivatives(NamedTuple):
    """dπ_ij / d(w_i, b_i), and an orthonormal basis of the identifiable directions."""

    values: Array
    basis: Array


def compute_m2_fit(
    both: NDArray[np.int64],
    n_rows: int,
    weights: Array,
    offsets: Array,
    nodes: Nodes,
    rank: int,
    asymptotes: Asymptotes | None = None,
    directions: Array | None = None,
) -> LimitedInformationFit:
    """Compute M₂ of a logistic model on nodes.

    With p the shares of ones of all features and pairs of features, π those of the model and N
    rows,

        M₂ = N eᵀ C e,   e = p − π,   C = Ξ⁻¹ − Ξ⁻¹ Δ (Δᵀ Ξ⁻¹ Δ)⁻¹ Δᵀ Ξ⁻¹,

    where Ξ is the covariance of one row's bits and their products, and Δ holds the derivatives of π
    (A. Maydeu-Olivares, H. Joe, JASA 100 (2005), eq. 3.10). M₂ of every consistent estimator has a
    χ² distribution. It is the maximum of 2 xᵀe − xᵀΞx with Δᵀx = 0, computed by conjugate gradients
    without a matrix of pairs by pairs: given a node the bits are independent, so that Ξ times a
    vector costs n_features² per node.

    Parameters
    ----------
    both, n_rows
        Number of rows in which both features are 1, (n_features, n_features), and number of rows.
        The diagonal counts the rows in which the feature is 1.
    weights, offsets
        Parameters, (n_features, q) and (n_features,).
    nodes
        Discrete approximation of the prior.
    rank
        Number of identifiable parameters.
    asymptotes
        Guessing and slipping of items, if any.
    directions
        Orthonormal basis of the estimated directions of all parameters of items, (n_features width,
        n_directions); by default those of slopes and offsets without rotations.
    """
    P = compute_probabilities(nodes.points @ weights.T + offsets, asymptotes)
    curves = _Curves(P, P * (1 - P), np.exp(nodes.log_weights))
    expected = _compute_expected_shares(P, curves.share)
    shares = both / n_rows
    slopes = _weigh_slopes(curves, weights, offsets, nodes, asymptotes)
    basis = _find_identifiable_directions(weights) if directions is None else directions
    derivatives = _ShareDerivatives(_share_derivatives(curves, slopes), basis)
    m2 = n_rows * _maximize_quadratic(shares - expected, expected, curves, derivatives)
    df = len(offsets) * (len(offsets) + 1) // 2 - rank
    return LimitedInformationFit(m2, df, _srmsr(shares, expected))


def compute_independence_fit(both: NDArray[np.int64], n_rows: int) -> LimitedInformationFit:
    """Compute M₂ of independent features with the same margins."""
    shares = both / n_rows
    margins = np.diag(shares)
    expected = np.outer(margins, margins)
    residuals = (shares - expected) / np.sqrt(
        np.outer(margins * (1 - margins), margins * (1 - margins))
    )
    above = np.triu_indices(len(margins), 1)
    m2 = n_rows * float((residuals[above] ** 2).sum())
    np.fill_diagonal(expected, margins)
    return LimitedInformationFit(m2, len(above[0]), _srmsr(shares, expected))


def _srmsr(shares: Array, expected: Array) -> float:
    residuals = _phi_correlations(shares) - _phi_correlations(expected)
    return float(np.sqrt((residuals[np.triu_indices(len(shares), 1)] ** 2).mean()))


def _phi_correlations(shares: Array) -> Array:
    """Return the correlations of bits."""
    p = np.diag(shares)
    scale = np.sqrt(p * (1 - p))
    correlations: Array = (shares - np.outer(p, p)) / np.outer(scale, scale)
    return correlations


def _weigh_slopes(
    curves: _Curves, weights: Array, offsets: Array, nodes: Nodes, asymptotes: Asymptotes | None
) -> list[Array]:
    """Return dP_i by each parameter of item i times the node weights, (n_features, n_nodes)."""
    if asymptotes is None:
        z = np.column_stack([nodes.points, np.ones(len(nodes.points))])
        return [curves.variance.T * (curves.share * column) for column in z.T]
    eta = weights @ nodes.points.T + offsets[:, None]
    by_eta = curves.P.T * differentiate_curves(eta, asymptotes.by_item).log_one
    return [*np.einsum("ail,l,alc->cil", by_eta, curves.share, list_directions(nodes.points))]


def _share_derivatives(curves: _Curves, slopes: list[Array]) -> Array:
    """Return dπ_ij by the parameters of item i, (n_features, n_features, width), and dπ_i."""
    columns = []
    for slope in slopes:
        derivative = slope @ curves.P
        np.fill_diagonal(derivative, slope.sum(axis=1))
        columns.append(derivative)
    return np.stack(columns, axis=2)


def _find_identifiable_directions(weights: Array) -> Array:
    """Return a basis orthogonal to rotations of the components, (n_features (q + 1), n)."""
    n_features, q = weights.shape
    rotations = np.zeros((math.comb(q, 2), n_features, q + 1))
    for rotation, (a, b) in zip(rotations, combinations(range(q), 2), strict=True):
        rotation[:, a], rotation[:, b] = weights[:, b], -weights[:, a]
    if not len(rotations):
        return np.eye(n_features * (q + 1))
    return np.asarray(scipy.linalg.null_space(rotations.reshape(len(rotations), -1)))


def make_equal_slope_directions(n_features: int) -> Array:
    """Return a basis of a slope that all features share and their offsets, for one component."""
    directions = np.zeros((n_features, 2, 1 + n_features))
    directions[:, 0, 0] = 1 / math.sqrt(n_features)
    directions[:, 1, 1:] = np.eye(n_features)
    return directions.reshape(2 * n_features, -1)


# Below, a vector over features and pairs is a symmetric matrix with the features on the diagonal.


def _maximize_quadratic(
    e: Array, expected: Array, curves: _Curves, slopes: _ShareDerivatives
) -> float:
    """Return max 2 xᵀe − xᵀΞx with Δᵀx = 0, by conjugate gradients on x scaled by Ξ's diagonal."""
    deviations = np.sqrt(expected * (1 - expected))
    project = _make_projection(slopes.values / deviations[:, :, None], slopes.basis)

    def multiply(x: Array) -> Array:
        return project(_multiply_covariance(x / deviations, curves) / deviations)

    return maximize_quadratic(project(e / deviations), multiply, _pair_dot)


def maximize_quadratic(
    slope: Array, multiply: Callable[[Array], Array], dot: Callable[[Array, Array], float]
) -> float:
    """Return max 2 xᵀs − xᵀAx by conjugate gradients, given the slope s and the map x ↦ Ax."""
    x, residual, direction = np.zeros_like(slope), slope, slope
    first = before = dot(residual, residual)
    for _ in range(_MAX_STEPS):
        if before <= _RESIDUAL_TOLERANCE**2 * first:
            break
        check_cancelled()
        image = multiply(direction)
        step = before / dot(direction, image)
        x, residual = x + step * direction, residual - step * image
        after = dot(residual, residual)
        direction, before = residual + after / before * direction, after
    return dot(x, slope)


def _pair_dot(a: Array, b: Array) -> float:
    """Return the inner product of two vectors over features and pairs."""
    return 0.5 * float(np.vdot(a, b) + np.diag(a) @ np.diag(b))


def _make_projection(slopes: Array, basis: Array) -> Callable[[Array], Array]:
    """Return the projection on Δᵀx = 0; `slopes` is (n_features, n_features, q + 1).

    Column (i, c) of Δ holds the derivatives of all pairs with i, and of i itself.
    """
    n, _, width = slopes.shape
    # The pair ij occurs in the columns of i and of j.
    gram = np.einsum("ijc,jid->icjd", slopes, slopes)
    own = np.einsum("ijc,ijd->icd", slopes, slopes)
    gram[np.arange(n), :, np.arange(n)] = own
    along = basis.T @ gram.reshape(n * width, -1) @ basis
    inverse = basis @ scipy.linalg.pinvh(along, rtol=RANK_TOLERANCE) @ basis.T

    def project(x: Array) -> Array:
        shares = (inverse @ np.einsum("ijc,ij->ic", slopes, x).ravel()).reshape(n, width)
        inside = np.einsum("ijc,ic->ij", slopes, shares)
        both = inside + inside.T
        np.fill_diagonal(both, np.diag(inside))
        return np.asarray(x - both)

    return project


def _multiply_covariance(x: Array, curves: _Curves) -> Array:
    """Return Ξx.

    Given a node, the centred bits y_i and the products y_i y_j are uncorrelated, with variances s_i
    and s_i s_j. The vector is transformed to this basis and back.
    """
    singles, pairs = np.diag(x), x - np.diag(np.diag(x))
    s = curves.variance
    slopes = s * (singles + curves.P @ pairs)  # (n_nodes, n_features)
    weighted = curves.P.T * curves.share
    crossed = weighted @ slopes
    product: Array = crossed + crossed.T + pairs * ((s.T * curves.share) @ s)
    np.fill_diagonal(product, curves.share @ slopes)
    means = curves.P @ singles + 0.5 * ((curves.P @ pairs) * curves.P).sum(axis=1)
    between = curves.share * (means - curves.share @ means)
    shifted = (curves.P.T * between) @ curves.P
    np.fill_diagonal(shifted, between @ curves.P)
    return np.asarray(product + shifted)
