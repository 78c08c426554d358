"""Standard errors of clipped PCA, computed from pair counts alone.

Correlations: by the delta method (U. Olsson, Psychometrika 44 (1979), eqs. 20–22). With ρ the
correlation, t the thresholds and φ₂ the bivariate density at them, a row of bits moves ρ_ij by

    A_ij (x_i x_j − p_ij) − B_ij (x_i − p_i) − B_ji (x_j − p_j),
    A = 1 / φ₂,   B_ij = A_ij Φ((ρ_ij t_i − t_j) / √(1 − ρ_ij²)),

divided by the share of rows in which both are observed. For features with several levels, see
`numerics.gaussian.polychoric_influence`: the sum then has a term for each pair of planes.

Loadings: a row that changes R by D changes an eigenvector v of eigenvalue λ by (λ − R)⁺ D v, and λ
by vᵀ D v. Sums over rows of D v (D v)ᵀ give the errors of loadings; no matrix is built per row.
A correlation whose table has an empty cell, or no rows, has no standard error (NaN), nor have the
loadings of its two features.
These sums need the covariance of two correlations, which pair counts do not contain. They are taken
over rows drawn from the fitted Gaussians, so that no row of the data is read again. So are the
squares of changes of factors, and the mean of their discrepancy, see
`numerics.spectra.factor_analysis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.executors.cancellation import check_cancelled
from pipeline.models.clipped_pca.factors import (
    correlate_features,
    differentiate_factors,
    find_orthogonal_loadings,
)
from pipeline.models.state import FitState
from pipeline.numerics.gaussian.polychoric_influence import polychoric_influence
from pipeline.numerics.spectra.factor_analysis import (
    compute_asymptotic_fit,
    make_discrepancy_form,
)
from pipeline.statistics.counts import PairCounts, PairTable

Planes = NDArray[np.int64]
Reals = NDArray[Any]  # in single or double precision
IterMoves = Callable[[Array, NDArray[np.uint8] | None, Array], Iterator[Reals]]
"""Yields D v of rows, (n_rows, n_features), given Gaussians, their mask, and the vectors v.

D is the influence of a row on all correlations; the vectors are (n_features, n_vectors).
"""

MAX_PLANES = 1000
"""Maximum number of planes with standard errors."""
_MIN_ROWS, _MAX_ROWS = 1_000, 20_000
_MAX_WORK = 2e10  # multiplications
_BATCH_ENTRIES = 2**21
_MIN_DENSITY = 1e-12
MAX_INDEX_FEATURES = 100
"""Maximum number of features of indices of fit that allow for the errors of correlations."""


def add_standard_errors(
    state: FitState,
    counts: PairCounts,
    empty_cells: Literal["half", "none"],
    rng: np.random.Generator,
) -> FitState:
    """Add standard errors to the correlations, thresholds and loadings of a `ClippedPCA`.

    Loadings of factors, and rotated ones, follow all correlations at once; factors get indices of
    fit that allow for the errors of correlations too.
    `counts` are the counts of all pairs, with segments pooled; `rng` draws the simulated rows.
    """
    params, weight = state.params, counts.weight
    firsts = None
    if params.n_levels is None:
        n, ones_i, ones_j, both = (
            np.broadcast_to(np.asarray(a, np.float64), params.correlation.shape)
            for a in counts.table(0)
        )
        influence = correlation_influence(params.correlation, n, ones_i, ones_j, both, weight)
        errors = correlation_standard_errors(influence, n, ones_i, ones_j, both, weight)
    else:
        firsts = np.cumsum(params.n_levels - 1) - (params.n_levels - 1)
        influence, errors = compute_level_influence(
            params.correlation, params.n_levels, counts.table(0), weight, empty_cells
        )
    observed, ones = (margin[0] for margin in counts.margins())
    params = replace(
        params,
        correlation_error=errors,
        thresholds_error=compute_threshold_errors(observed, ones),
    )
    shares = (observed if firsts is None else observed[firsts]) / weight
    iter_moves = make_level_moves(influence, params.thresholds, params.n_levels)
    state = replace(state, params=params)
    return add_errors_of_loadings(state, shares, weight, rng, iter_moves, len(params.thresholds))


def compute_level_influence(
    correlation: Array,
    n_levels: Planes,
    table: PairTable,
    weight: float,
    empty_cells: Literal["half", "none"],
) -> tuple[CorrelationInfluence, Array]:
    """Return the influence of bits of planes on correlations, and the correlations' errors."""
    first = np.concatenate([[0], np.cumsum(n_levels - 1)])
    influence = polychoric_influence(*table, correlation, first, empty_cells=empty_cells)
    n = np.broadcast_to(table.n, influence.joint.shape)
    scale = weight / np.maximum(n, 1)
    firsts = first[:-1]
    scaled = CorrelationInfluence(
        influence.joint * scale,
        influence.single * scale[:, firsts],
        influence.constant * scale[np.ix_(firsts, firsts)],
    )
    return scaled, influence.error


def add_errors_of_loadings(
    state: FitState,
    observed: Array,
    weight: float,
    rng: np.random.Generator,
    iter_moves: IterMoves,
    row_size: int,
) -> FitState:
    """Add the standard errors of loadings, NaN where they are unknown; of factors, indices of fit.

    The parameters have the errors of correlations; loadings of a feature with an unknown one have
    none. `observed` are shares of rows, (n_features,); `weight` is the weight of all rows. See
    `sum_products` for `row_size`.
    """
    params, constant = state.params, state.auxiliary["constant"]
    if params.communality is not None:  # the loadings are no scaled eigenvectors
        return _add_errors_of_factors(state, observed, weight, rng, iter_moves, row_size)
    q = params.loadings.shape[1]
    x, mask = _draw_rows(params, observed, q, rng)
    values = params.eigenvalues[:q]
    scale = np.where(values > 0, 1 / np.sqrt(np.where(values > 0, values, 1.0)), 0.0)
    vectors = params.loadings * scale
    varying = params.correlation.copy()
    varying[constant, constant] = 0.0
    moments = sum_products(x, mask, vectors, iter_moves, row_size) / len(x)
    errors = loading_standard_errors(varying, values, vectors, moments)
    # The loadings of a feature depend on its own correlations in the first place.
    is_unknown = np.isnan(params.correlation_error)
    is_unknown[constant] = is_unknown[:, constant] = False
    errors[is_unknown.any(axis=1)] = np.nan
    errors[constant] = np.nan
    return replace(state, params=replace(params, loadings_error=errors / np.sqrt(weight)))


def _add_errors_of_factors(
    state: FitState,
    observed: Array,
    weight: float,
    rng: np.random.Generator,
    iter_moves: IterMoves,
    row_size: int,
) -> FitState:
    """Add the errors of rotated loadings, and indices of fit that allow for those of correlations.

    The arguments are those of `add_errors_of_loadings`.
    """
    params, found = state.params, state.diagnostics.get("fit_statistics", {})
    has_indices = "normal_chi2" in found
    varying = np.setdiff1d(np.arange(len(params.loadings)), state.auxiliary["constant"])
    own = np.ix_(varying, varying)
    reason = None
    if np.isnan(params.correlation_error[own]).any():
        reason = "some correlations have no standard error"
    elif len(varying) > MAX_INDEX_FEATURES:
        reason = f"there are more than {MAX_INDEX_FEATURES} features"
    if reason is not None:
        if not has_indices:
            return state
        diagnostics = {**state.diagnostics, "fit_statistics": {**found, "rmsea_missing": reason}}
        return replace(state, diagnostics=diagnostics)
    estimator, rotation = (
        state.diagnostics.get(name, default)
        for name, default in (("estimator", "pca"), ("rotation", "none"))
    )
    fitted, pairs = correlate_features(params)[own], np.triu_indices(len(varying), 1)
    by_correlation = differentiate_factors(params, varying, estimator, rotation)
    evaluate = None
    if has_indices:
        orthogonal = find_orthogonal_loadings(params)[varying]
        evaluate = make_discrepancy_form(fitted, orthogonal, is_ml=estimator == "ml")
    x, mask = _draw_rows(params, observed, len(varying), rng)
    vectors = np.eye(len(params.loadings))[:, varying]
    total, baseline, mean = 0.0, 0.0, np.zeros(fitted.shape)
    squares: Array = np.zeros(len(by_correlation))
    for rows in _split_rows(len(x), max(row_size, fitted.size)):
        own_mask = mask if mask is None else mask[rows]
        columns = [moves[:, varying] for moves in iter_moves(x[rows], own_mask, vectors)]
        changes = np.stack(columns, axis=2).astype(np.float64)
        moved = changes[:, *pairs] @ by_correlation.T
        squares += (moved**2).sum(axis=0) / len(x)
        mean += changes.sum(axis=0) / len(x)
        if evaluate is not None:
            total += float(evaluate(changes).sum())
            baseline += float((changes**2).sum()) / 2
    errors = np.full(params.loadings.shape, np.nan)
    variances = squares - (by_correlation @ mean[pairs]) ** 2
    errors[varying] = np.sqrt(np.maximum(variances, 0.0) / weight).reshape(len(varying), -1)
    state = replace(state, params=replace(params, loadings_error=errors))
    if evaluate is None:
        return state
    expected = total / len(x) - float(evaluate(mean[None])[0])
    expected_baseline = baseline / len(x) - float((mean**2).sum()) / 2
    indices = compute_asymptotic_fit(
        params.correlation[own],
        fitted,
        params.loadings.shape[1],
        weight,
        (expected, expected_baseline),
    )
    others = {name: value for name, value in found.items() if name != "rmsea_missing"}
    diagnostics = {**state.diagnostics, "fit_statistics": others | indices}
    return replace(state, diagnostics=diagnostics)


def _count_planes(params: Any) -> int:
    """Return the number of planes and, if some features are continuous, of all features."""
    return len(params.thresholds) + (0 if params.means is None else len(params.n_levels))


def _draw_rows(
    params: Any, observed: Array, n_vectors: int, rng: np.random.Generator
) -> tuple[Array, NDArray[np.uint8] | None]:
    """Draw Gaussians and, if values are missing, their mask, as many as the work allows."""
    n_rows = _MAX_WORK / (_count_planes(params) ** 2 * max(n_vectors, 1))
    x = _draw_gaussians(params, int(np.clip(n_rows, _MIN_ROWS, _MAX_ROWS)), rng)
    mask = None
    if (observed < 1).any():
        mask = (rng.random(x.shape) < observed).astype(np.uint8)
    return x, mask


def _draw_gaussians(params: Any, n_rows: int, rng: np.random.Generator) -> Array:
    """Draw Gaussians, (n_rows, n_features); negative eigenvalues are set to 0."""
    values, vectors = scipy.linalg.eigh(params.correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    if params.means is not None:  # rounding may change signs of eigenvectors, but not this root
        root = root @ vectors.T
    root /= np.linalg.norm(root, axis=1)[:, None]
    x: Array = rng.standard_normal((n_rows, len(values))) @ root.T
    return x


def cut_gaussians(x: Array, thresholds: Array, n_levels: Planes | None) -> NDArray[np.uint8]:
    """Return bits of planes, (n_rows, n_planes); `n_levels` is None if all are binary."""
    by_plane = x if n_levels is None else np.repeat(x, n_levels - 1, axis=-1)
    is_above: NDArray[np.bool_] = by_plane > thresholds
    return is_above.astype(np.uint8)


def compute_threshold_errors(observed: NDArray[np.int64], ones: NDArray[np.int64]) -> Array:
    """Return the standard errors of −Φ⁻¹(p), (n_planes,); NaN for constant planes."""
    p = ones / observed
    density = np.exp(-(scipy.special.ndtri(np.clip(p, 1e-300, 1 - 1e-16)) ** 2) / 2)
    errors = np.sqrt(2 * np.pi * p * (1 - p) / observed) / np.maximum(density, 1e-300)
    return np.where((ones == 0) | (ones == observed), np.nan, errors)


class CorrelationInfluence(NamedTuple):
    """Influence of bits on correlations; 0 without information."""

    joint: Reals  # A divided by the share of rows with both observed, (n_planes, n_planes)
    single: Reals  # B divided by this share: influence of plane i on its pair with j
    constant: Reals  # the part that is the same in every row, (n_features, n_features)


def correlation_influence(
    correlation: Array, n: Array, ones_i: Array, ones_j: Array, both: Array, weight: float
) -> CorrelationInfluence:
    """Compute how the bits of a row move each correlation, (n_features, n_features).

    `n` counts the rows with both features observed, `ones_i` and `ones_j` the ones of each feature
    among them, and `both` the rows with both ones. These arrays have the shape of `correlation`.
    """
    is_informative = (n > 0) & (ones_i > 0) & (ones_i < n) & (ones_j > 0) & (ones_j < n)
    np.fill_diagonal(is_informative, False)
    rows = np.maximum(n, 1)
    p_i, p_j = ones_i / rows, ones_j / rows
    t_i, t_j = (-scipy.special.ndtri(np.where(is_informative, p, 0.5)) for p in (p_i, p_j))
    rho = np.clip(correlation, -1 + 1e-9, 1 - 1e-9)
    spread = np.sqrt(1 - rho**2)
    density = np.exp(-(t_i**2 - 2 * rho * t_i * t_j + t_j**2) / (2 * spread**2))
    density /= 2 * np.pi * spread
    joint = np.where(is_informative, weight / rows / np.maximum(density, _MIN_DENSITY), 0.0)
    single = joint * scipy.special.ndtr((rho * t_i - t_j) / spread)
    constant = joint * both / rows - single * p_i - single.T * p_j
    return CorrelationInfluence(joint, single, constant)


def correlation_standard_errors(
    influence: CorrelationInfluence,
    n: Array,
    ones_i: Array,
    ones_j: Array,
    both: Array,
    weight: float,
) -> Array:
    """Compute the standard errors of correlations, (n_features, n_features); NaN where unknown.

    The counts are as for `correlation_influence`, which computed `influence` from them.
    """
    rows = np.maximum(n, 1)
    variance = np.zeros(n.shape)
    cells = {(1, 1): both, (1, 0): ones_i - both, (0, 1): ones_j - both}
    cells[0, 0] = n - ones_i - ones_j + both
    for (a, b), count in cells.items():
        joint, single = influence.joint, influence.single
        change = a * b * joint - a * single - b * single.T - influence.constant
        variance += count / rows * change**2
    # The influences weigh a row by the share of rows that observe the pair.
    errors = np.sqrt(variance / rows) * rows / weight
    # The delta method knows nothing of a table with an empty cell, to which halves were added.
    is_known = (influence.joint > 0) & (np.minimum.reduce([*cells.values()]) > 0)
    errors = np.where(is_known, errors, np.nan)
    np.fill_diagonal(errors, 0.0)
    return np.asarray(errors)


def make_level_moves(
    influence: CorrelationInfluence, thresholds: Array, n_levels: Planes | None = None
) -> IterMoves:
    """Return the function that computes D v of rows of features with levels.

    `n_levels` is (n_features,), None if all features are binary.
    """
    # Products in single precision take half the time; moves are sums of a few hundred of them.
    influence = CorrelationInfluence(*(part.astype(np.float32) for part in influence))

    def iter_moves(x: Array, mask: NDArray[np.uint8] | None, vectors: Array) -> Iterator[Reals]:
        X = cut_gaussians(x, thresholds, n_levels).astype(np.float32)
        # Without missing values, the terms that depend on the mask are the same in every row.
        m = np.ones((1, len(vectors)), np.float32)
        if mask is not None:
            m = mask.astype(np.float32)
            X *= m if n_levels is None else np.repeat(m, n_levels - 1, axis=1)
        for v in vectors.T.astype(np.float32):
            yield compute_moves(X, m, v, influence, n_levels)

    return iter_moves


def compute_moves(
    x: Reals, m: Reals, v: Reals, influence: CorrelationInfluence, n_levels: Planes | None
) -> Reals:
    """Compute D v of rows, (n_samples, n_features), given bits that are 0 where missing.

    `m` is the mask of features, (n_samples, n_features) or (1, n_features).
    """
    if n_levels is None:
        n_levels = np.full(len(v), 2)
    n_planes = n_levels - 1
    xv, mv = x * np.repeat(v, n_planes), m * v
    moves: Reals = x * (xv @ influence.joint - mv @ influence.single.T)
    if n_planes.max(initial=1) > 1:
        moves = np.add.reduceat(moves, np.cumsum(n_planes) - n_planes, axis=1)
    moves -= m * (xv @ influence.single + mv @ influence.constant)
    return moves


def sum_products(
    x: Array,
    mask: NDArray[np.uint8] | None,
    vectors: Array,
    iter_moves: IterMoves,
    row_size: int,
) -> Array:
    """Sum (D v)(D v)ᵀ over rows, minus the contribution of their mean.

    Return the sums for each of `vectors`, (n_features, n_components), as an array of shape
    (n_components, n_features, n_features). `row_size` is the number of entries that `iter_moves`
    computes per row and vector.
    """
    n_features, q = vectors.shape
    products, sums = np.zeros((q, n_features, n_features)), np.zeros((q, n_features))
    for rows in _split_rows(len(x), row_size):
        own_mask = mask if mask is None else mask[rows]
        for k, moves in enumerate(iter_moves(x[rows], own_mask, vectors)):
            products[k] += moves.T @ moves
            sums[k] += moves.sum(axis=0)
    return np.asarray(products - sums[:, :, None] * sums[:, None] / max(len(x), 1))


def _split_rows(n_rows: int, row_size: int) -> Iterator[slice]:
    height = max(1, _BATCH_ENTRIES // row_size)
    for start in range(0, n_rows, height):
        check_cancelled()
        yield slice(start, min(start + height, n_rows))


def loading_standard_errors(
    correlation: Array, values: Array, vectors: Array, moments: Array
) -> Array:
    """Compute the standard errors of √λ v, (n_features, n_components); 0 unless λ > 0.

    `values` (n_components,) and `vectors` (n_features, n_components) are the leading eigenvalues
    and eigenvectors of R, `correlation`. `moments` (n_components, n_features, n_features) is the
    covariance of D v over rows, divided by their number.
    """
    all_values, all_vectors = scipy.linalg.eigh(correlation)
    errors = np.zeros(vectors.shape)
    for k, (value, v) in enumerate(zip(values, vectors.T, strict=True)):
        if value <= 0:
            continue
        gaps = value - all_values
        nearest = int(np.argmin(abs(gaps)))
        inverse = np.where(np.arange(len(gaps)) == nearest, 0.0, 1 / np.where(gaps == 0, 1, gaps))
        turn = np.sqrt(value) * (all_vectors * inverse) @ all_vectors.T
        turn += np.outer(v, v) / (2 * np.sqrt(value))
        variance = np.einsum("ij,jk,ik->i", turn, moments[k], turn, optimize=True)
        errors[:, k] = np.sqrt(np.maximum(variance, 0.0))  # rounding
    return errors
